"""`penstock trace` of a daemon that serves: every step on every stage, one after another."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.patience import PATIENCE, wait_until

STAGES = 3
KINDS = {"prefill", "decode", "mixed"}


def trace(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "server", "trace", *arguments]
    return subprocess.Popen(command)


@pytest.fixture(scope="module")
def busy_pipeline() -> Iterator[Daemon]:
    """A pipeline that generates while a test runs, some of its prompts long."""
    over = threading.Event()

    def ask(daemon: Daemon, number: int) -> None:
        prompt = "The function returns a list of " * (1 + number % 3 * 20)
        body = {"model": GENERATOR_NAME, "prompt": prompt, "max_tokens": 30, "ignore_eos": True}
        while not over.is_set():
            assert httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60).is_success

    arguments = f"{demo_models()[GENERATOR_NAME]} --served-model-name {GENERATOR_NAME} --threads 1"
    with running(*arguments.split(), "--pipeline-stages", str(STAGES)) as daemon:
        threads = [threading.Thread(target=ask, args=(daemon, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        yield daemon
        over.set()
        for thread in threads:
            thread.join()


def slices(file: Path) -> list[list[dict[str, Any]]]:
    """The slices of each stage's track, in the order of the file."""
    events = json.loads(file.read_bytes())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert named == {GENERATOR_NAME, *(f"stage {stage} (cpu)" for stage in range(STAGES))}
    return [[e for e in events if e["ph"] == "X" and e["tid"] == stage] for stage in range(STAGES)]


def test_a_trace_of_a_pipeline(busy_pipeline: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    before = time.monotonic_ns() // 1000
    command = trace("--pid", str(busy_pipeline.pid), "--seconds", "1.5", "-o", str(file))
    assert command.wait(timeout=PATIENCE) == 0
    after = time.monotonic_ns() // 1000
    tracks = slices(file)
    for track in tracks:
        for one, next_one in pairwise(track):
            assert one["ts"] + one["dur"] <= next_one["ts"]
        assert all(before <= event["ts"] <= after for event in track if event["name"] != "idle")
    computed = [{e["args"]["step"]: e for e in track if e["name"] in KINDS} for track in tracks]
    steps = list(computed[0])
    assert len(steps) > 20
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert [list(of_stage) for of_stage in computed] == [steps] * STAGES
    for of_stage, of_next in pairwise(computed):
        for step in steps:
            assert of_stage[step]["args"] == of_next[step]["args"]
            ends = of_stage[step]["ts"] + of_stage[step]["dur"]
            assert ends <= of_next[step]["ts"] + of_next[step]["dur"]
    assert "decode" in {event["name"] for event in computed[0].values()}


def test_ctrl_c_ends_it_without_a_file(busy_pipeline: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    command = trace("--pid", str(busy_pipeline.pid), "--seconds", "60", "-o", str(file))
    wait_until(file.exists)
    time.sleep(0.2)
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(timeout=PATIENCE) == 130
    assert not file.exists()
