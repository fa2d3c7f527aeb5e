"""Clients that do not read: who is cut off, and who is not."""

import asyncio
from typing import Any

import pytest

from server.service.ledger import Ledger
from server.wire import unread_answers
from server.wire.unread_answers import UnreadAnswers
from tests.virtual_time import in_virtual_time

MAX_BYTES, MAX_SECONDS = 1000, 0.2


class Reader:
    """A client that reads `rate` bytes between two looks."""

    def __init__(self, unread: int, rate: int = 0) -> None:
        self.unread, self.rate = unread, rate
        self.is_cut = False
        self.held = 0
        self.transport = self
        self.scope = {"record": self}

    def get_write_buffer_size(self) -> int:
        self.unread -= self.rate
        return self.unread

    def held_bytes(self) -> int:
        return self.held

    def abort(self) -> None:
        self.is_cut = True


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(unread_answers, "_LOOK_SECONDS", 0.02)
    return UnreadAnswers(Ledger(MAX_BYTES), MAX_SECONDS)


@in_virtual_time
async def test_who_reads_nothing_is_cut_off_in_time(watcher: Any) -> None:
    still, slow, paused = Reader(10), Reader(900, rate=1), Reader(10)
    for reader in (still, slow, paused):
        watcher.watch(reader)
    await asyncio.sleep(MAX_SECONDS / 2)
    paused.unread -= 1
    await asyncio.sleep(MAX_SECONDS * 0.8)
    assert [still.is_cut, slow.is_cut, paused.is_cut] == [True, False, False]


@in_virtual_time
async def test_of_too_much_the_slowest_are_cut_off(watcher: Any) -> None:
    slow, slower, fast = Reader(500, rate=2), Reader(500, rate=1), Reader(500, rate=9)
    for reader in (slow, slower, fast):
        watcher.watch(reader)
    await asyncio.sleep(0.02 * 2.5)
    fast.held = 100
    new = Reader(90)
    watcher.watch(new)
    await asyncio.sleep(0.02 * 2)
    assert [r.is_cut for r in (slow, slower, fast, new)] == [True, True, False, False]


@in_virtual_time
async def test_one_answer_may_be_larger_than_what_all_may_have(watcher: Any) -> None:
    steady, slow = Reader(10 << 20, rate=16 << 10), Reader(10 << 20, rate=(16 << 10) - 1)
    watcher.watch(slow)
    watcher.watch(steady)
    await asyncio.sleep(0.02 * 6)
    assert [steady.is_cut, slow.is_cut] == [False, True]
    steady.rate = 100
    await asyncio.sleep(0.02 * 20)
    assert steady.is_cut


@in_virtual_time
async def test_who_reads_more_slowly_than_it_is_written_has_read(watcher: Any) -> None:
    reader = Reader(100, rate=1)
    watcher.watch(reader)
    for _ in range(14):
        reader.held += 10
        await asyncio.sleep(MAX_SECONDS / 10)
    assert not reader.is_cut


@in_virtual_time
async def test_who_has_caught_up_is_forgotten(watcher: Any) -> None:
    reader = Reader(2000)
    watcher.watch(reader)
    watcher.forget(reader)
    watcher.forget(reader)
    await asyncio.sleep(0.05)
    assert not reader.is_cut
    assert watcher._timer is None
