"""Files and batches in a folder: by owner, page by page, and after a killed daemon."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from server.batches.state.database import Page, StateFolderError
from server.batches.state.state_folder import StateFolder, StateLock
from server.batches.state.stored_batches import StoredBatch
from server.batches.state.stored_files import StoredFile, new_id
from tests.server.batches.state.opened import opened, prepared


def stored(
    state: StateFolder, owner: str = "me", contents: bytes = b"abc", **fields: object
) -> StoredFile:
    given = {"filename": "a.jsonl", "purpose": "batch", "bytes": 3, "created_at": 5} | fields
    file = StoredFile(new_id("file"), owner, **given)  # pyright: ignore[reportArgumentType]
    state.files.path(file.id).write_bytes(contents)
    state.files.add(file)
    return file


def batch(owner: str = "me", **fields: object) -> StoredBatch:
    given = {
        "endpoint": "/v1/completions", "input_file_id": "f", "completion_window": "24h",
        "metadata": '{"a":"b"}', "created_at": 5, "expires_at": 9,
    } | fields  # fmt: skip
    return StoredBatch(id=new_id("batch"), owner=owner, **given)  # pyright: ignore[reportArgumentType]


def test_lists_come_in_pages(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    files = [stored(state, created_at=at) for at in (3, 1, 2)]
    stored(state, owner="you")
    by_age = sorted(files, key=lambda file: file.created_at)
    assert state.files.list("me", Page(9)) == by_age[::-1]
    assert state.files.list("me", Page(9, newest_first=False)) == by_age
    assert state.files.list("me", Page(1)) == by_age[:0:-1], "one behind the page tells of more"
    assert state.files.list("me", Page(9, by_age[1].id)) == [by_age[0]]
    assert state.files.list("me", Page(9, by_age[1].id, newest_first=False)) == [by_age[2]]
    assert state.files.list("me", Page(9), "batch_output") == []
    assert state.files.list("me", Page(9, by_age[1].id), "batch_output") == []


def test_what_has_expired_is_gone(tmp_path: Path) -> None:
    state = opened(tmp_path / "state")
    past = stored(state, expires_at=int(time.time()))
    future = stored(state, expires_at=int(time.time()) + 100)
    assert state.files.get(past.id, "me") is None
    assert state.files.list("me", Page(9)) == [future]
    state.files.drop_expired()
    assert not state.files.path(past.id).exists()
    assert state.files.path(future.id).exists()


def test_what_a_killed_daemon_left_half_done_is_removed(tmp_path: Path) -> None:
    state = opened(tmp_path)
    kept, running, over = stored(state), batch(), batch(status="completed")
    for each in (running, over):
        state.batches.add(each)
        (state.jobs / each.id).touch()
    (tmp_path / "files" / "file-of-an-upload.new").touch()
    state.close()
    again = opened(tmp_path)
    assert [path.name for path in (tmp_path / "files").iterdir()] == [kept.id]
    assert [path.name for path in again.jobs.iterdir()] == [running.id]


def test_one_daemon_has_the_folder(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    with pytest.raises(StateFolderError, match="another daemon's"):
        StateLock(tmp_path)
    lock.release()
    StateLock(tmp_path).release()


def test_what_is_no_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateFolderError, match=r"file.* cannot be written"):
        StateLock(tmp_path / "file")


def test_a_database_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    prepared(tmp_path)
    with closing(sqlite3.connect(tmp_path / "penstock.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StateFolderError, match="newer release"):
        StateLock(tmp_path)


def test_a_batch_is_what_it_was(tmp_path: Path) -> None:
    state = opened(tmp_path)
    first, second = batch(model="m", errors="[]"), batch(output_seconds=7)
    for each in (first, second):
        state.batches.add(each)
    assert state.batches.get(first.id, "me") == first
    assert state.batches.get(first.id, "you") is None
    assert state.batches.get(second.id, "me") == second
    assert state.batches.next_open() == first
    found = {each.id: each for each in state.batches.list("me", Page(9))}
    assert found == {first.id: first, second.id: second}


def test_a_batch_takes_a_status_only_from_those_that_lead_there(tmp_path: Path) -> None:
    state = opened(tmp_path)
    one = batch()
    state.batches.add(one)
    assert state.batches.enter(one.id, "in_progress", "validating", model="m")
    assert not state.batches.enter(one.id, "in_progress", "validating", model="n")
    cancelled = state.batches.cancel(one.id, "me")
    assert cancelled is not None
    assert (cancelled.status, cancelled.model) == ("cancelling", "m")
    assert cancelled.cancelling_at is not None
    file = StoredFile("file-o", "me", "o.jsonl", "batch_output", 1, 2)
    state.batches.end(one.id, "cancelled", (file,), output_file_id=file.id)
    over = state.batches.cancel(one.id, "me")
    assert over is not None
    assert (over.status, over.output_file_id) == ("cancelled", file.id)
    assert state.files.get(file.id, "me") == file
    assert state.batches.next_open() is None
    assert state.batches.cancel(one.id, "you") is None


def test_threads_and_processes_share_the_database(tmp_path: Path) -> None:
    token = prepared(tmp_path).token
    states = [StateFolder(tmp_path, token) for _ in range(2)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: states[number % 2].batches.add(batch()), range(120)))
    assert len(states[0].batches.list("me", Page(1000))) == 120


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    state = opened(tmp_path)
    file = StoredFile("file-o", "me", "o.jsonl", "batch_output", 1, 2)
    state.files.add(file)
    one = batch()
    state.batches.add(one)
    with pytest.raises(sqlite3.IntegrityError):
        state.batches.end(one.id, "completed", (file,))
    assert state.batches.next_open() == one
