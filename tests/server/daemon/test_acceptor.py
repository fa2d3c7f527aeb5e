"""API processes share a listening socket: each accepts as many connections as the others."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from server.daemon.acceptor import Acceptor
from server.observe.shared_cells import SharedCell, SharedCells

CONNECTIONS = 40


class Process:
    """What accepts in an API process, with the connections that it has."""

    def __init__(self, listener: socket.socket, folder: Path, index: int, processes: int) -> None:
        files = [folder / f"counts-{number}" for number in range(processes)]
        self.cell = SharedCell(SharedCells(1, files, index), 0)
        self.open: list[socket.socket] = []
        self._listener = listener

    def begin(self) -> None:
        self.acceptor = Acceptor(self._listener.dup(), self._connect, self.open.__len__, self.cell)

    async def _connect(self, connection: socket.socket) -> None:
        self.open.append(connection)

    def close(self) -> None:
        self.acceptor.close()
        for connection in self.open:
            connection.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as listener:
        yield listener


class TurnClock(asyncio.SelectorEventLoop):
    """A loop whose clock counts turns: ten to a millisecond, however busy the machine is."""

    turns = 0

    def time(self) -> float:
        return self.turns * 1e-4


def accepted(listener: socket.socket, processes: list[Process]) -> list[int]:
    """A burst comes: how many connections has each of the processes when all are accepted?"""
    with asyncio.Runner(loop_factory=TurnClock) as runner:
        return runner.run(_accepted(listener, processes))


async def _accepted(listener: socket.socket, processes: list[Process]) -> list[int]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnClock)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        for each in processes:
            each.begin()
            stack.callback(each.close)
        while sum(len(each.open) for each in processes) < CONNECTIONS and loop.turns < 100_000:
            await asyncio.sleep(0)
            loop.turns += 1
        return [len(each.open) for each in processes]


def test_each_process_has_its_share_of_a_burst(listener: socket.socket, tmp_path: Path) -> None:
    processes = [Process(listener, tmp_path, index, 3) for index in range(3)]
    counts = accepted(listener, processes)
    assert max(counts) <= min(counts) * 1.25 + 2


def test_what_the_others_do_not_take_is_accepted(listener: socket.socket, tmp_path: Path) -> None:
    """One of them stands still."""
    processes = [Process(listener, tmp_path, index, 2) for index in range(2)]
    assert accepted(listener, processes[:1]) == [CONNECTIONS]


def test_several_connections_are_accepted_in_a_turn(
    listener: socket.socket, tmp_path: Path
) -> None:
    async def turns() -> int:
        alone, turns = Process(listener, tmp_path, 0, 1), 0
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            alone.begin()
            stack.callback(alone.close)
            while len(alone.open) < CONNECTIONS:
                await asyncio.sleep(0)
                turns += 1
        return turns

    assert uvloop.run(turns()) < CONNECTIONS / 2


def test_a_connection_that_cannot_be_set_up_is_forgotten(
    listener: socket.socket, tmp_path: Path
) -> None:
    """A handshake has failed."""

    async def count() -> int:
        async def fail(connection: socket.socket) -> None:
            connection.close()
            raise ConnectionResetError

        cell = SharedCell(SharedCells(1, [tmp_path / "counts"], 0), 0)
        acceptor = Acceptor(listener.dup(), fail, lambda: 0, cell)
        with socket.create_connection(listener.getsockname()) as client:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, client.recv, 1) == b""
        acceptor.close()
        return acceptor.publish()

    assert uvloop.run(count()) == 0
