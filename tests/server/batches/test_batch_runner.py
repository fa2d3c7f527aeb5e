"""Batches run one after another, and go on where a process was ended."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from server.batches.answering import Backend
from server.batches.batch_process import BatchHealth, BatchRunner
from server.batches.file_job import FileJob
from server.batches.result_log import JobFileError
from server.batches.results import JobStoppedError
from server.batches.state.state_folder import StateFolder
from server.batches.state.stored_batches import StoredBatch
from tests.server.batches.requests_file import Echo, line, numbered, outputs, until
from tests.server.batches.state.opened import opened
from tests.server.batches.state.test_state_folder import batch, stored

ME = "me"
OPEN = {"validating", "in_progress", "finalizing", "cancelling"}


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return opened(tmp_path)


def uploaded(state: StateFolder, *lines: bytes) -> str:
    return stored(state, contents=b"".join(lines)).id


def begun(state: StateFolder, file_id: str, seconds: int = 100, **fields: Any) -> str:
    now = int(time.time())
    one = batch(input_file_id=file_id, created_at=now, expires_at=now + seconds, **fields)
    state.batches.add(one)
    return one.id


def got(state: StateFolder, batch_id: str) -> StoredBatch:
    batch = state.batches.get(batch_id, ME)
    assert batch is not None
    return batch


def runner(state: StateFolder, backend: Backend) -> BatchRunner:
    health = BatchHealth(state.jobs.with_name("health"))
    return BatchRunner(state, backend, 1 << 16, health, lambda _: None)


@asynccontextmanager
async def running(state: StateFolder, backend: Backend) -> AsyncIterator[None]:
    task = asyncio.create_task(runner(state, backend).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def over(state: StateFolder, batch_id: str) -> StoredBatch:
    await until(lambda: got(state, batch_id).status not in OPEN)
    return got(state, batch_id)


async def asked(backend: Echo, count: int) -> None:
    await until(lambda: len(backend.asked) >= count)


def results(state: StateFolder, file_id: str | None) -> list[dict[str, Any]]:
    file = state.files.get(file_id or "", ME)
    assert file is not None
    path = state.files.path(file.id)
    assert (file.bytes, file.purpose) == (path.stat().st_size, "batch_output")
    return outputs(path)


async def test_answers_and_failures_come_in_order_in_their_files(state: StateFolder) -> None:
    lines = [
        line("a", "z", model="m"),
        b"nonsense\n",
        line("b", "y", model="m"),
        line("c", model="other"),
        line("d", model="m").replace(b"completions", b"embeddings"),
    ]
    batch_id = begun(state, uploaded(state, *lines))
    async with running(state, Echo()):
        batch = await over(state, batch_id)
        await until(lambda: not list(state.jobs.iterdir()))
    assert (batch.status, batch.model) == ("completed", "m")
    assert (batch.total, batch.completed, batch.failed) == (5, 3, 2)
    assert [each["custom_id"] for each in results(state, batch.output_file_id)] == ["a", "b", "c"]
    failed = results(state, batch.error_file_id)
    assert [each["error"]["code"] for each in failed] == ["invalid_json_line", "invalid_url"]
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)


ODD_LINES = {
    "no JSON": b"nonsense\n",
    "no UTF-8": line("odd").replace(b"odd", b"\xff"),
    "NUL": b"\0" * 50 + b"\n",
    "half a character": line("odd").replace(b'"a"', rb'"\ud800"'),
    "nested": b'{"custom_id": "odd", "body": ' + b"[" * 5000 + b"\n",
    "another model": line("odd", model="typo"),
    "no model": line("odd"),
    "a wrong model": line("odd", model=5),
    "another endpoint": line("1", model="m").replace(b"/v1/completions", b"/v1/nothing"),
    "another method": line("1", model="m").replace(b"POST", b"GET"),
    "streamed": line("1", model="m", stream=True),
    "the same id": line("0", model="m"),
    "huge": line("odd", "x" * (1 << 18), model="m"),
    "a byte order mark": b"\xef\xbb\xbf" + line("odd", model="m"),
}


@pytest.mark.parametrize("odd", ODD_LINES.values(), ids=ODD_LINES)
@pytest.mark.parametrize("place", [0, 1, 3])
async def test_an_odd_line_changes_nothing_for_others(state: StateFolder, odd, place) -> None:
    good = [line(str(number), "xyz"[number], model="m") for number in range(3)]
    alone = begun(state, uploaded(state, *good))
    # With the id of another the odd line comes behind that.
    place = 3 if odd == ODD_LINES["the same id"] else place
    batch_id = begun(state, uploaded(state, *good[:place], odd, *good[place:]))
    async with running(state, Echo()):
        expected = answers(results(state, (await over(state, alone)).output_file_id))
        batch = await over(state, batch_id)
    assert batch.total == 4
    assert batch.model in ("m", "typo", None)
    found = answers(results(state, batch.output_file_id))
    assert [each for each in found if each[0] != "odd"] == expected


def answers(lines: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(each["custom_id"], each["response"]["body"]) for each in lines]


async def test_there_is_no_empty_file(state: StateFolder) -> None:
    good = begun(state, uploaded(state, line("a")))
    bad = begun(state, uploaded(state, b"nonsense\n"), output_seconds=7200)
    async with running(state, Echo()):
        assert (await over(state, good)).error_file_id is None
        failed = await over(state, bad)
    assert failed.output_file_id is None
    assert failed.error_file_id is not None
    file = state.files.get(failed.error_file_id, ME)
    assert file is not None
    assert file.expires_at == file.created_at + 7200


async def test_a_batch_that_cannot_be_read_fails(state: StateFolder) -> None:
    empty = begun(state, uploaded(state, b"\n\n"))
    gone = begun(state, "file-gone")
    last = begun(state, uploaded(state, line("a")))
    async with running(state, Echo()):
        assert (await over(state, last)).status == "completed"
    for batch_id, code in ((empty, "empty_file"), (gone, "input_unreadable")):
        batch = got(state, batch_id)
        assert (batch.status, json.loads(batch.errors)[0]["code"]) == ("failed", code)
        assert batch.failed_at is not None


async def test_a_batch_goes_on_where_it_was(state: StateFolder) -> None:
    lines = numbered(60)
    batch_id = begun(state, uploaded(state, *lines))
    first = Echo(pause=0.02)
    async with running(state, first):
        await asked(first, 20)
    assert got(state, batch_id).status == "in_progress"
    second = Echo()
    async with running(state, second):
        batch = await over(state, batch_id)
    assert (batch.completed, batch.failed) == (60, 0)
    found = [each["custom_id"] for each in results(state, batch.output_file_id)]
    assert found == [str(number) for number in range(60)]
    assert len(first.asked) + len(second.asked) <= 61, "the one that was asked last is asked again"


async def test_files_expire_while_a_batch_runs(state: StateFolder, monkeypatch) -> None:
    monkeypatch.setattr("server.batches.batch_process._EXPIRY_S", 0.1)
    batch_id = begun(state, uploaded(state, *numbered(1000)))
    backend = Echo(pause=0.02)
    async with running(state, backend):
        await asked(backend, 1)
        old = stored(state, expires_at=2)
        await until(lambda: not state.files.path(old.id).exists())
        assert got(state, batch_id).status == "in_progress"


async def test_a_cancelled_batch_has_what_was_done(state: StateFolder) -> None:
    batch_id = begun(state, uploaded(state, *numbered(1000)))
    next_id = begun(state, uploaded(state, line("a")))
    backend = Echo(pause=0.01)
    async with running(state, backend):
        await asked(backend, 5)
        state.batches.cancel(batch_id, ME)
        batch = await over(state, batch_id)
        await over(state, next_id)
    assert (batch.status, batch.error_file_id) == ("cancelled", None)
    assert 5 <= len(results(state, batch.output_file_id)) == batch.completed < 1000
    assert got(state, next_id).status == "completed"


async def test_a_batch_that_was_cancelled_before_its_turn_asks_nothing(state: StateFolder) -> None:
    batch_id = begun(state, uploaded(state, *numbered(50)))
    state.batches.cancel(batch_id, ME)
    backend = Echo(pause=1)
    async with running(state, backend):
        assert (await over(state, batch_id)).status == "cancelled"
    assert backend.asked == []


async def test_what_is_not_done_in_time_is_an_error(state: StateFolder) -> None:
    batch_id = begun(state, uploaded(state, *numbered(1000)), 2)
    async with running(state, Echo(pause=0.02)):
        batch = await over(state, batch_id)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    done, late = results(state, batch.output_file_id), results(state, batch.error_file_id)
    assert len(done) + len(late) == 1000
    assert {each["error"]["code"] for each in late} == {"batch_expired"}


async def test_a_lost_engine_leaves_the_batch_for_another_time(state: StateFolder) -> None:
    def lost(count: int) -> None:
        if count == 3:
            raise JobStoppedError("the engine stopped (engine_dead)")

    batch_id = begun(state, uploaded(state, *numbered(9)))
    with pytest.raises(JobStoppedError):
        await runner(state, Echo(lost)).run()
    assert got(state, batch_id).status == "in_progress"
    async with running(state, Echo()):
        assert (await over(state, batch_id)).completed == 9


async def test_a_full_disk_fails_the_batch(state: StateFolder, monkeypatch) -> None:
    monkeypatch.setattr(FileJob, "assemble", Mock(side_effect=JobFileError("full")))
    batch_id = begun(state, uploaded(state, line("a")))
    async with running(state, Echo()):
        batch = await over(state, batch_id)
    assert (batch.status, json.loads(batch.errors)[0]["code"]) == ("failed", "storage_full")
