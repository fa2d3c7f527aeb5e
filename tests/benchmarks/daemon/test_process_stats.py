import os
import subprocess
import sys
import time

from benchmarks.daemon.process_stats import children_of, cpu_seconds, has_mapped, memory_of


def test_memory_and_mapped_files():
    memory = memory_of(os.getpid())
    assert 10e6 < memory.pss <= memory.rss
    assert has_mapped(os.getpid(), "libc.so")
    assert not has_mapped(os.getpid(), "libnothing")


def test_children_are_known_by_their_module():
    statement = "print(flush=True); input()"
    command = [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", statement]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert children_of(os.getpid())[child.pid] == "timeit"
    finally:
        child.kill()
        child.communicate()


def test_cpu_time_grows_with_work():
    before, deadline = cpu_seconds(os.getpid()), time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.02
