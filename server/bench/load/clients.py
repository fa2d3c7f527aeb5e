"""Several clients of one load, each a process of its own but the first, which is this one."""

import asyncio
import signal
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from server.bench.load.load_generator import ClientLoad, ClientResult, Load
from server.bench.results.measurement import BenchError
from server.child_process import ChildProcess
from server.first_error import first_error
from server.settings.server_config import child_environment

_COMMAND = (sys.executable, "-P", "-m", "server.bench.load.client_main")
_LONGEST_LINE = 1 << 30


class Connected(msgspec.Struct, frozen=True, tag=True):
    """A client's connections are open."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """So many of a client's requests are answered; it says so twice a second."""

    requests: int


class NotConnected(msgspec.Struct, frozen=True, tag=True):
    """A client cannot connect, for this reason."""

    reason: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A client's load is over."""

    result: ClientResult


FromClient = Connected | NotConnected | Done | Finished
"""What a client's process says, a line of JSON each. It reads its load, then an empty line as soon
as every client is connected: then it begins."""

_DECODER: msgspec.json.Decoder[FromClient] = msgspec.json.Decoder(FromClient)


class Clients:
    """All clients of one run, connected."""

    def __init__(self, own: Load, others: Sequence["_Process"]) -> None:
        self._own, self._others = own, others

    def done(self) -> int:
        """Requests that were answered so far."""
        return self._own.done() + sum(other.done for other in self._others)

    async def run(self) -> list[ClientResult]:
        """Begin at once and wait for all. Raises BenchError if a client's process ends."""
        with first_error(BenchError):
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(other.run()) for other in self._others]
                running.append(group.create_task(self._own.run()))
        return [each.result() for each in running]


@asynccontextmanager
async def connected_clients(load: ClientLoad, count: int) -> AsyncGenerator[Clients]:
    """So many clients that divide `load`, or fewer where fewer requests are in flight, until the
    block ends. Raises BenchError if one of them cannot connect."""
    mine, *theirs = load.divided(count)
    own = Load(mine)
    async with AsyncExitStack() as running:
        running.callback(own.close)
        others = [await running.enter_async_context(_process(each)) for each in theirs]
        try:
            await own.connect()
        except OSError as error:
            raise BenchError(f"cannot connect: {error}") from None
        await asyncio.gather(*[other.connected() for other in others])
        yield Clients(own, others)


@asynccontextmanager
async def _process(load: ClientLoad) -> AsyncGenerator["_Process"]:
    """A client's process that has its load, until the block ends. Raises BenchError."""
    try:
        child = ChildProcess(_COMMAND, child_environment(), answers=True)
    except OSError as error:
        raise BenchError(f"a client's process cannot be started: {error.strerror}") from None
    reader, writer = await asyncio.open_connection(sock=child.socket, limit=_LONGEST_LINE)
    try:
        writer.write(msgspec.json.encode(load) + b"\n")
        yield _Process(reader, writer)
    finally:
        child.signal(signal.SIGKILL)
        await child.exit
        writer.close()


class _Process:
    """Another process that is one of the clients."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.done = 0
        self._reader, self._writer = reader, writer

    async def connected(self) -> None:
        """Wait until its connections are open. Raises BenchError if it cannot connect."""
        if isinstance(said := await self._next(), NotConnected):
            raise BenchError(f"cannot connect: {said.reason}")

    async def run(self) -> ClientResult:
        """Raises BenchError if it ends before its load does."""
        self._writer.write(b"\n")
        while not isinstance(said := await self._next(), Finished):
            if isinstance(said, Done):
                self.done = said.requests
        return said.result

    async def _next(self) -> FromClient:
        try:
            return _DECODER.decode(await self._reader.readuntil(b"\n"))
        except (EOFError, ConnectionError):
            raise BenchError("a client's process has ended") from None
