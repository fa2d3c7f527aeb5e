"""The batch process is started again, and the metrics are told which it is."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.daemon.running_part import RunningPart
from tests.server.daemon.fake_daemon import FakeDaemon


async def test_the_next_one_is_told(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    daemon.add("engine", "engine")
    daemon.add("batches", "batch")
    told: list[dict[str, int]] = []

    def on_started(processes: Sequence[RunningPart]) -> None:
        told.append({process.part.title: process.pid for process in processes})
        if len(told) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def end_one() -> None:
        os.kill(told[0]["batches"], signal.SIGKILL)

    assert await daemon.run(end_one, on_started=on_started) == 0
    first, second = told
    assert first["engine"] == second["engine"]
    assert first["batches"] != second["batches"]


async def test_one_that_stands_still_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = FakeDaemon(tmp_path)
    daemon.add("worker", "worker")
    daemon.add("batches", "batch")  # it never sends a heartbeat
    starts = 0

    def on_started(_: Sequence[RunningPart]) -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert await daemon.run(lambda: None, stall=2.0, on_started=on_started) == 0
    stood_still = "stood still (no heartbeat for 2 s) and was killed"
    assert caplog.messages == [f"the batches {stood_still}; starting it again in 1 s"]
