"""Batches wait where the disk is full or the database gone, and say so once."""

import asyncio
import errno
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from server.batches import result_log
from server.batches.batch_process import BatchRunner
from server.observe.processes import batches_run
from tests.server.batches.requests_file import Echo, numbered, outputs, until
from tests.server.batches.state.opened import opened
from tests.server.batches.test_batch_runner import ME, asked, begun, got, over, runner, uploaded

LINES = numbered(400, "x" * 200)
RETRIES = 5


class Disk:
    """Refuses results, or whatever wants room, while it `is_full`."""

    def __init__(self) -> None:
        self.is_full = self.has_reserve = False

    def write(self, do: Callable[..., None], *arguments: object, reserve: bool = False) -> None:
        if self.is_full and not (reserve and self.has_reserve):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        do(*arguments)


@pytest.fixture
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk that a test may fill from the beginning, but for its reserve (its parameter)."""
    made = Disk()
    made.is_full = made.has_reserve = getattr(request, "param", False)
    monkeypatch.setattr(result_log, "_write", partial(made.write, result_log._write))
    reserve = partial(made.write, os.posix_fallocate, reserve=True)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    monkeypatch.setattr("server.batches.file_job.SYNC_SECONDS", 0.02)
    return made


class Waiting:
    """A runner with one batch on a disk, and what it says."""

    def __init__(self, folder: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog, self._said = caplog, folder / "state" / "health"
        self.state, self.disk = opened(folder / "state"), disk
        self.backend, self.turns = Echo(pause=0.001), 0
        self.runner = runner(self.state, self.backend)
        self.batch_id = begun(self.state, uploaded(self.state, *LINES))

    def runs(self) -> bool:
        return batches_run(self._said)

    def lines(self) -> list[str]:
        return [line for line in self._caplog.messages if line.startswith("files and batches")]

    async def until(self, *, runs: bool) -> None:
        await until(lambda: self.runs() == runs)

    async def until_full(self) -> None:
        """Until it waits for a disk that is full after some requests."""
        await asked(self.backend, 20)
        self.disk.is_full = True
        await self.until(runs=False)

    async def more(self) -> None:
        """Until it has tried again, several times."""
        seen = self.turns
        await until(lambda: self.turns >= seen + RETRIES)


@pytest_asyncio.fixture
async def waiting(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Waiting]:
    """One that runs, and tries again at once."""
    made, turn = Waiting(tmp_path, disk, caplog), BatchRunner._turn

    async def counted(self: BatchRunner) -> None:
        made.turns += 1
        await turn(self)

    monkeypatch.setattr(BatchRunner, "_turn", counted)
    monkeypatch.setattr("server.batches.batch_process.RETRY_S", 0.01)
    task = asyncio.create_task(made.runner.run())
    yield made
    task.cancel()


async def test_a_full_disk_is_waited_for(waiting: Waiting) -> None:
    await waiting.until_full()
    await waiting.more()
    assert got(waiting.state, waiting.batch_id).status == "in_progress"
    (line,) = waiting.lines()
    assert "No space left on device: about" in line
    waiting.disk.is_full = False
    batch = await over(waiting.state, waiting.batch_id)
    assert (batch.status, batch.completed, batch.failed) == ("completed", len(LINES), 0)
    assert waiting.runs()
    assert waiting.lines() == [line, "files and batches go on"]
    results = outputs(waiting.state.files.path(batch.output_file_id or ""))
    assert [each["custom_id"] for each in results] == list(map(str, range(len(LINES))))


async def test_a_batch_that_is_cancelled_gives_room(waiting: Waiting) -> None:
    results = waiting.state.jobs / waiting.batch_id
    await waiting.until_full()
    assert results.exists()
    waiting.state.batches.cancel(waiting.batch_id, ME)
    batch = await over(waiting.state, waiting.batch_id)
    assert (batch.status, json.loads(batch.errors)[0]["code"]) == ("failed", "storage_full")
    assert not results.exists()
    await waiting.more()
    assert len(waiting.lines()) == 1


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_results_that_cannot_be_begun_are_no_fault_of_the_input(waiting: Waiting) -> None:
    await waiting.more()
    assert got(waiting.state, waiting.batch_id).status == "validating"
    waiting.disk.is_full = False
    assert (await over(waiting.state, waiting.batch_id)).completed == len(LINES)


async def test_a_lost_database_is_waited_for(tmp_path: Path, waiting: Waiting) -> None:
    await waiting.until(runs=True)
    (tmp_path / "state" / "penstock.db").rename(tmp_path / "elsewhere")
    await waiting.until(runs=False)
    await waiting.more()
    (line,) = waiting.lines()
    assert "penstock.db cannot be found" in line
    (tmp_path / "elsewhere").rename(tmp_path / "state" / "penstock.db")
    assert (await over(waiting.state, waiting.batch_id)).completed == len(LINES)


async def test_one_that_is_cancelled_as_the_disk_fills_up_fails(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last results are nowhere, and its files would lack them."""
    monkeypatch.setattr("server.batches.file_job.SYNC_SECONDS", 60)
    state = opened(tmp_path)
    batch_id = begun(state, uploaded(state, *LINES))
    backend = Echo(pause=0.01)
    task = asyncio.create_task(runner(state, backend).run())
    await asked(backend, 20)
    disk.is_full = True
    state.batches.cancel(batch_id, ME)
    batch = await over(state, batch_id)
    assert (batch.status, json.loads(batch.errors)[0]["code"]) == ("failed", "storage_full")
    assert not task.done()
    task.cancel()
