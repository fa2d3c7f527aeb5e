"""Stored responses in a folder: lines of them, of which some are deleted or have expired."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from server.batches.state.state_folder import StateFolder, StateLock
from server.batches.state.stored_responses import StoredResponse
from tests.server.batches.state.opened import opened, prepared
from tests.server.batches.state.test_state_folder import stored

SIZE = 7


def response(name: str, parent: str | None = None, **fields: object) -> StoredResponse:
    given = {
        "owner": "me", "bytes": SIZE, "created_at": 5, "expires_at": int(time.time()) + 100,
        "input": f"[{name}]", "answer": "{}",
    } | fields  # fmt: skip
    return StoredResponse(id=name, parent=parent, **given)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    """A folder with the responses a, b behind it, and c and d behind that."""
    state = opened(tmp_path)
    for each in (response("a"), response("b", "a"), response("c", "b"), response("d", "b")):
        state.responses.add(each)
    return state


def line(state: StateFolder, name: str, owner: str = "me", most: int = 10 * SIZE) -> str:
    return "".join(each.id for each in state.responses.line(name, owner, most))


def delete(state: StateFolder, name: str) -> None:
    assert state.responses.delete(name, "me")
    assert not state.responses.delete(name, "me")


def expire(state: StateFolder, name: str) -> None:
    with closing(sqlite3.connect(state.jobs.parent / "penstock.db")) as database:
        database.execute("UPDATE responses SET expires_at = 1 WHERE id = ?", (name,))
        database.commit()


def test_a_line_is_what_came_before(state: StateFolder) -> None:
    assert [line(state, name) for name in "abcd"] == ["a", "ab", "abc", "abd"]
    assert [line(state, "c", most=most) for most in (0, SIZE, 2 * SIZE)] == ["c", "bc", "abc"]
    (first,) = state.responses.line("a", "me", SIZE)
    assert first == state.responses.get("a", "me") == response("a")


def test_what_is_another_owner_s_does_not_exist(state: StateFolder) -> None:
    assert state.responses.get("a", "you") is None
    assert line(state, "b", "you") == ""
    assert not state.responses.delete("a", "you")
    assert (state.used_bytes("me"), state.used_bytes("you")) == (4 * SIZE, 0)


@pytest.mark.parametrize("end", [delete, expire])
def test_what_ends_stays_behind_those_that_go_on(
    state: StateFolder, end: Callable[[StateFolder, str], None]
) -> None:
    for name in "ab":
        end(state, name)
        assert state.responses.get(name, "me") is None
        assert line(state, name) == ""
    state.drop_expired()
    assert [line(state, name) for name in "cd"] == ["abc", "abd"]
    end(state, "c")
    state.drop_expired()
    assert line(state, "d") == "abd"
    assert state.used_bytes("me") == 3 * SIZE
    end(state, "d")
    state.drop_expired()
    assert state.used_bytes("me") == 0


def test_responses_and_files_count_together(state: StateFolder) -> None:
    file = stored(state)
    assert state.used_bytes("me") == file.bytes + 4 * SIZE


def test_they_become_the_other_owner_s(state: StateFolder, tmp_path: Path) -> None:
    state.close()
    lock = StateLock(tmp_path, [("me", "you")])
    lock.release()
    assert line(StateFolder(tmp_path, lock.token), "c", "you") == "abc"


def test_a_database_of_an_older_release_gets_the_table(tmp_path: Path) -> None:
    state = opened(tmp_path)
    file = stored(state)
    state.close()
    with closing(sqlite3.connect(tmp_path / "penstock.db")) as database:
        database.executescript("DROP TABLE responses; PRAGMA user_version = 1;")
    state = StateFolder(tmp_path, prepared(tmp_path).token)
    assert state.files.get(file.id, "me") == file
    state.responses.add(response("a"))
    assert line(state, "a") == "a"
