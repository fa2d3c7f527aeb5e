"""Clients that do not read: who is cut off, and who is not."""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.http.wire import LogLimit, UnreadAnswers
from server.service.ledger import Ledger
from tests.server.conftest import DeploymentBuilder
from tests.server.support import server_config
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
    monkeypatch.setattr("server.http.wire._LOOK_SECONDS", 0.02)
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


WINDOW_S = 0.2


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test of a limit")
    limit = LogLimit(logger, first=2, seconds=WINDOW_S)
    logger.addFilter(limit)
    yield logger
    logger.removeFilter(limit)


@in_virtual_time
async def test_the_first_are_written_and_the_others_counted(log: logging.Logger, caplog) -> None:
    for number in range(100):
        log.warning("number %d", number)
    assert caplog.messages == ["number 0", "number 1"]
    await asyncio.sleep(2 * WINDOW_S)
    assert caplog.messages[2:] == ["98 more in the last 0.2 s"]


@in_virtual_time
async def test_a_few_are_all_written(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(6):
        log.warning("number %d", number)
        await asyncio.sleep(1.1 * WINDOW_S if number % 2 else 0)
    assert caplog.messages == [f"number {number}" for number in range(6)]


def test_bad_connections_and_wrong_keys(builder: DeploymentBuilder, capfd) -> None:
    config = server_config(builder.model("writer", "generate"), api_key="key")
    deployment = builder.open(config)
    started = time.monotonic()
    for _ in range(12):
        with deployment.connect() as client:
            client.sendall(b"nothing\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        assert deployment.post("/v1/completions", {"prompt": "a"}).status_code == 401
    written = capfd.readouterr().err.splitlines()
    told = [line for line in written if "a request could not be read: this is not" in line]
    windows = 1 + (time.monotonic() - started) // 10
    assert 5 <= len(told) <= 5 * windows
    assert all(" more in the last 10 s" in line for line in set(written) - set(told))
