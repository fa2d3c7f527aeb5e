"""The state folder of a daemon: whose is what is in it, and what stops no start."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.batches.state.database import Page
from server.batches.state.state_folder import StateFolder
from server.daemon.daemon import held_state
from server.settings.api_keys import APIKey, GivenKey, hashed
from tests.server.batches.state.test_state_folder import batch, stored

OLD, NEW = "sk-old", "sk-new"


def opened(folder: Path, keys: Sequence[APIKey]) -> StateFolder:
    """After a start with such keys."""
    with held_state(str(folder), keys) as state:
        token = state.token
    return StateFolder(folder, token)


def keep(state: StateFolder, owner: str) -> tuple[str, str]:
    """A file and a batch of an owner: their ids."""
    one = batch(owner)
    state.batches.add(one)
    kept = stored(state, owner).id, one.id
    state.close()
    return kept


def kept(state: StateFolder, owner: str) -> list[tuple[str, str]]:
    files, batches = state.files.list(owner, Page(9)), state.batches.list(owner, Page(9))
    return [(file.id, one.id) for file, one in zip(files, batches, strict=True)]


def test_a_key_that_gets_a_name_keeps_what_it_has_and_so_does_its_successor(tmp_path: Path) -> None:
    (unnamed,) = hashed([GivenKey(OLD)])
    own = keep(opened(tmp_path, [unnamed]), unnamed.owner)

    (named,) = hashed([GivenKey(OLD, "shop")])
    state = opened(tmp_path, [named])
    assert kept(state, named.owner) == [own]
    assert kept(state, unnamed.owner) == []
    state.close()

    (successor,) = hashed([GivenKey(NEW, "shop")])
    assert kept(opened(tmp_path, [successor]), successor.owner) == [own]


def test_both_keys_of_a_name_bring_what_they_have(tmp_path: Path) -> None:
    old, new = hashed([GivenKey(OLD), GivenKey(NEW)])
    first = keep(opened(tmp_path, [old, new]), old.owner)
    second = keep(opened(tmp_path, [old, new]), new.owner)
    shop = hashed([GivenKey(OLD, "shop"), GivenKey(NEW, "shop")])
    assert len({key.owner for key in shop}) == 1
    found = kept(opened(tmp_path, shop), shop[0].owner)
    assert {each for pair in found for each in pair} == {*first, *second}


def test_a_place_among_keys_is_no_name(tmp_path: Path) -> None:
    (old,) = hashed([GivenKey(OLD)])
    own = keep(opened(tmp_path, [old]), old.owner)
    (other,) = hashed([GivenKey(NEW)])
    assert old.name == other.name
    state = opened(tmp_path, [other])
    assert kept(state, other.owner) == []
    assert kept(state, old.owner) == [own]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "penstock"


def warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return record.getMessage()


def test_a_folder_that_is_damaged_stops_no_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(opened(folder, ()), "")
    (folder / "penstock.db").unlink()
    with held_state(None, ()) as state:
        assert (state.folder, state.switched_off) == (None, False)
    assert "penstock.db is missing or empty" in warning(caplog)
    assert len(list((folder / "files").iterdir())) == 1


def test_one_that_is_not_wanted_is_not_looked_at() -> None:
    with held_state("none", ()) as state:
        assert (state.folder, state.switched_off) == (None, True)


@pytest.mark.usefixtures("folder")
def test_a_second_daemon_of_a_user_is_told_which_flag_helps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with held_state(None, ()), held_state(None, ()) as second:
        assert second.folder is None
    assert re.search("another daemon's.*--state-dir", warning(caplog))
