"""A database that is lost, damaged or another one costs no client its files."""

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from server.batches.state.database import Page, StateFolderError
from server.batches.state.state_folder import StateFolder, StateLock
from tests.server.batches.state.opened import opened, prepared
from tests.server.batches.state.test_state_folder import batch, stored

DATABASE = "penstock.db"
LOSSES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda database: os.truncate(database, 0),
    "cut": lambda database: os.truncate(database, database.stat().st_size // 2),
    "nonsense": lambda database: database.write_bytes(b"no database" * 1000),
}


def without_tables(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA journal_mode = WAL")


def damage(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096 + 8 :: 64] = b"\xff" * len(content[4096 + 8 :: 64])
    database.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for kind in ("files", "jobs")
        for file in (folder / kind).iterdir()
    }


@pytest.mark.parametrize("lose", [*LOSSES.values(), without_tables, damage])
def test_a_start_without_the_database_deletes_nothing(tmp_path: Path, lose) -> None:
    state = opened(tmp_path)
    stored(state)
    (state.jobs / "batch-1").write_bytes(b"results")
    state.close()
    lose(tmp_path / DATABASE)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(StateFolderError, match=r"cannot be used: .*penstock\.db"):
            StateLock(tmp_path)
        assert contents(tmp_path) == before


def test_a_log_without_its_database_is_kept(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / DATABASE).unlink()
    log = tmp_path / f"{DATABASE}-wal"
    log.write_bytes(b"what was not in the database yet")
    with pytest.raises(StateFolderError, match=r"penstock\.db is missing or empty"):
        StateLock(tmp_path)
    assert log.exists()


def test_what_a_backup_does_not_know_is_left_alone(tmp_path: Path, caplog) -> None:
    state = opened(tmp_path)
    known = stored(state)
    state.close()
    shutil.copy(tmp_path / DATABASE, tmp_path / "backup")
    state = opened(tmp_path)
    unknown = stored(state)
    running = batch()
    state.batches.add(running)
    (state.jobs / running.id).write_bytes(b"results")
    state.close()
    assert caplog.messages == []

    shutil.move(tmp_path / "backup", tmp_path / DATABASE)
    with caplog.at_level(logging.WARNING):
        state = opened(tmp_path)
    assert state.files.list("me", Page(9)) == [known]
    assert contents(tmp_path).keys() == {known.id, unknown.id, running.id}
    (line,) = caplog.messages
    assert line.startswith("2 files in ")
    assert "are left alone" in line


def test_a_new_folder_is_no_lost_one(tmp_path: Path) -> None:
    for name in ("files", "jobs"):
        (tmp_path / name).mkdir()
    (tmp_path / DATABASE).touch()  # as a daemon leaves it that was killed at once
    assert opened(tmp_path).files.list("me", Page(9)) == []


def move_another(database: Path) -> None:
    opened(database.with_name("other")).close()
    (database.with_name("other") / DATABASE).replace(database)


OTHERS: dict[str, Callable[[Path], object]] = {
    "another": move_another,
    "a copy": lambda database: shutil.move(shutil.copy(database, f"{database}-copy"), database),
    "a backup": lambda database: shutil.copy(database.with_name("backup"), database),
}


@pytest.mark.parametrize("lose", [*LOSSES.values(), *OTHERS.values()], ids=[*LOSSES, *OTHERS])
def test_a_database_is_watched_while_it_is_in_use(tmp_path: Path, lose) -> None:
    prepared(tmp_path)
    shutil.copy(tmp_path / DATABASE, tmp_path / "backup")
    state = opened(tmp_path)
    file = stored(state)
    lose(tmp_path / DATABASE)
    for use in (
        partial(state.files.get, file.id, "me"),
        partial(state.files.delete, file.id, "me"),
        partial(state.batches.add, batch()),
    ):
        with pytest.raises(StateFolderError, match=r"penstock\.db"):
            use()
    assert state.files.path(file.id).exists()


def test_a_process_that_begins_later_wants_the_same(tmp_path: Path) -> None:
    token = prepared(tmp_path).token
    move_another(tmp_path / DATABASE)
    with pytest.raises(StateFolderError, match="replaced"):
        StateFolder(tmp_path, token).batches.next_open()


@pytest.mark.parametrize("is_old", [False, True])
def test_nobody_else_reads_it(tmp_path: Path, is_old: bool) -> None:
    folder = tmp_path / "state"
    former = os.umask(0)
    try:
        if is_old:
            state = opened(folder)
            stored(state)
            state.close()
            for each in (folder, *folder.rglob("*")):
                each.chmod(0o777)
        lock = StateLock(folder)
    finally:
        os.umask(former)
    found = {file.name: file.stat().st_mode & 0o777 for file in (folder, *folder.rglob("*"))}
    private = {name: found.pop(name) for name in (folder.name, "files", "jobs")}
    assert set(private.values()) == {0o700}
    assert {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"} < set(found)
    assert set(found.values()) == {0o600}, found
    lock.release()


def test_what_else_is_in_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tool").touch(mode=0o755)
    mode = (tmp_path / "tool").stat().st_mode
    prepared(tmp_path)
    assert (tmp_path / "tool").stat().st_mode == mode


def test_a_folder_of_all_users_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(StateFolderError, match="for all users"):
        StateLock(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
