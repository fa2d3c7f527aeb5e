"""A job that is killed at random moments, while its log is written all the time."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.batches.file_job import FileJob
from tests.patience import PATIENCE
from tests.server.batches.requests_file import RULES, Echo, line, outputs, write

LINES = 2_000
JOB = [sys.executable, "-m", "tests.server.batches.slow_job"]


def records(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def after_a_kill(source: Path, log: Path, synced: int) -> int:
    """Go on until there are more records than `synced`, and a moment longer; how many there are."""
    with subprocess.Popen([*JOB, str(source), str(log)]) as process:
        until = time.monotonic() + PATIENCE
        while records(log) <= synced and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        process.kill()
    assert process.returncode == -9, "it was still at work"
    return records(log)


@pytest.mark.long
async def test_no_line_is_missing_or_twice_after_ten_kills(tmp_path: Path) -> None:
    source = write(tmp_path, *[line(str(number), f"prompt {number}") for number in range(LINES)])
    log = tmp_path / "log"
    synced = 0
    for _ in range(10):
        synced = after_a_kill(source, log, synced)
    job = FileJob(source, log, rules=RULES, options={})
    await job.open(resume=True)
    assert synced - 1 <= job.summary.done < LINES, "all but the head are results"
    before, backend = job.summary.done, Echo()
    await job.run(backend)
    assert len(backend.asked) == LINES - before
    job.assemble(tmp_path / "out")
    assert [each["custom_id"] for each in outputs(tmp_path / "out")] == list(map(str, range(LINES)))
    job.remove()
