"""Processes that log, and end with one of their threads."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.patience import PATIENCE

BEGIN = """
import logging, os, sys, threading, time
from workers.contract.process import open_log
open_log("worker 0 of tiny", "info")
log = logging.getLogger("test")
"""
PANIC = """
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tests.engine_core.panicking import BAD, make_panicking
raw = Tokenizer(WordLevel({"a": 0}, "a"))
make_panicking(raw)
"""


def process(
    script: str, stderr: int = subprocess.PIPE, stdin: int | None = None
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)


def ended(script: str) -> tuple[int, list[str]]:
    """Its status, and the lines on its standard error."""
    with process(script) as running:
        _, stderr = running.communicate(timeout=PATIENCE)
        return running.returncode, stderr.decode().splitlines()


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    """A pipe without room."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


@pytest.mark.parametrize(
    "error", ["raise KeyError('gone')", "raise SystemExit(0)", "raw.encode(BAD)"]
)
def test_a_thread_that_ends_by_an_exception_ends_its_process(error: str) -> None:
    script = f"""
def work(): {error}
for number in range(1000): log.info("line %d", number)
threading.Thread(target=work, name="tokenize-short").start()
time.sleep(60)
"""
    status, lines = ended(PANIC + script)
    assert status == 1
    said = [line for line in lines if "worker 0 of tiny" in line]
    assert len(said) == 1001  # what waited comes first
    assert said[-1].endswith(
        "CRITICAL worker 0 of tiny: thread tokenize-short has ended by an exception"
    )
    assert lines[lines.index(said[-1]) + 1].startswith("Traceback")


def test_what_was_dropped_is_said_once_there_is_a_reader(full: tuple[int, int]) -> None:
    reader, writer = full
    script = """
for number in range(20_000): log.info("%s %d", "y" * 1000, number)
sys.stdout.write("done\\n"); sys.stdout.flush()
sys.stdin.read()
"""
    read: list[bytes] = []

    def drain() -> None:
        while data := os.read(reader, 1 << 16):
            read.append(data)

    draining = threading.Thread(target=drain)
    with process(script, writer, subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"done\n"
        draining.start()
        running.communicate(timeout=PATIENCE)
        os.close(writer)
        draining.join(PATIENCE)
        assert running.returncode == 0
    lines = b"".join(read).decode().splitlines()
    written = sum("yyy" in line for line in lines)
    (said,) = (line for line in lines if line.endswith(" lines were dropped"))
    assert f"WARNING worker 0 of tiny: {20_000 - written:,} lines" in said


def test_only_the_first_tracebacks_are_logged() -> None:
    script = """
for number in range(50):
    try: raise KeyError(number)
    except KeyError: log.exception("request %d failed", number)
"""
    status, lines = ended(script)
    assert status == 0
    assert sum("failed" in line for line in lines) == 50
    assert sum(line.startswith("Traceback") for line in lines) == 5
    assert sum(line.startswith("(no traceback") for line in lines) == 45


IN_A_THREAD = """
def work(): raise KeyError
for number in range(1000): log.info("line %d", number)
threading.Thread(target=work).start()
time.sleep(60)
"""
ON_STDERR = """
for number in range(1000): print("line", number, file=sys.stderr, flush=True)
"""
IN_A_LIBRARY = """
for _ in range(20):
    try: raw.encode(BAD)
    except BaseException as error: assert "PanicException" in repr(type(error))
"""


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (IN_A_THREAD, 1),
        (f"{ON_STDERR}sys.exit(3)", 3),
        (f"{ON_STDERR}raise KeyError", 1),
        (PANIC + IN_A_LIBRARY, 0),
    ],
    ids=["last words", "exit", "error", "library"],
)
def test_a_full_pipe_holds_up_no_end_and_stays_as_it_is(
    full: tuple[int, int], script: str, status: int
) -> None:
    started = time.monotonic()
    with process(script, full[1]) as running:
        assert running.wait(PATIENCE) == status
    assert time.monotonic() - started < 50
    assert os.get_blocking(full[1])


def test_a_spare_ends_with_its_parent() -> None:
    program = "from workers.contract.process import line_from_parent; print(line_from_parent())"
    for given, status, said in ((b"", 1, b""), (b"3\n", 0, b"3\n")):
        ended = subprocess.run(
            [sys.executable, "-c", program], input=given, stdout=subprocess.PIPE, check=False
        )
        assert (ended.returncode, ended.stdout) == (status, said)
