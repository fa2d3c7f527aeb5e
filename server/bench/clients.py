"""Several clients of one load, each a process of its own but the first, which is this one.

Such a process is `python -P -m server.bench.clients`, with its other end on a socket that is its
standard input.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import uvloop

from server.bench.load import ClientLoad, ClientResult, Load
from server.bench.measurement import BenchError
from server.child_process import ChildProcess
from server.first_error import first_error
from server.settings.server_config import child_environment

_COMMAND = (sys.executable, "-P", "-m", "server.bench.clients")
_LONGEST_LINE = 1 << 30
_SAY_SECONDS = 0.5
_STDIN = 0


class ClientState(msgspec.Struct, frozen=True, kw_only=True):
    """What a client's process says, a line of JSON each: first that it is connected, or why not;
    then twice a second how many of its requests are answered; at the end its result.

    It reads its load, then an empty line as soon as every client is connected: then it begins.
    """

    cannot_connect: str | None = None
    done: int = 0
    result: ClientResult | None = None


_DECODER = msgspec.json.Decoder(ClientState)


class Clients:
    """All clients of one run, connected."""

    def __init__(self, clients: Sequence["Load | _Process"]) -> None:
        self._clients = clients

    def done(self) -> int:
        """Requests that were answered so far."""
        return sum(client.done() for client in self._clients)

    async def run(self) -> list[ClientResult]:
        """Begin at once and wait for all. Raises BenchError if a client's process ends."""
        with first_error(BenchError):
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(client.run()) for client in self._clients]
        return [each.result() for each in running]


@asynccontextmanager
async def connected_clients(load: ClientLoad, count: int) -> AsyncGenerator[Clients]:
    """So many clients that divide `load`, or fewer where fewer requests are in flight, until the
    block ends. Raises BenchError if one of them cannot connect."""
    mine, *theirs = load.divided(count)
    own = Load(mine)
    async with AsyncExitStack() as running:
        running.callback(own.close)
        clients = [own, *[await running.enter_async_context(_process(each)) for each in theirs]]
        try:
            await asyncio.gather(*[client.connect() for client in clients])
        except OSError as error:
            raise BenchError(f"cannot connect: {error}") from None
        yield Clients(clients)


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
        self._done = 0
        self._reader, self._writer = reader, writer

    def done(self) -> int:
        """As it has said."""
        return self._done

    async def connect(self) -> None:
        """Wait until its connections are open. Raises OSError, or BenchError if it ends."""
        if (reason := (await self._next()).cannot_connect) is not None:
            raise OSError(reason)

    async def run(self) -> ClientResult:
        """Raises BenchError if it ends before its load does."""
        self._writer.write(b"\n")
        while (result := (state := await self._next()).result) is None:
            self._done = state.done
        return result

    async def _next(self) -> ClientState:
        try:
            return _DECODER.decode(await self._reader.readuntil(b"\n"))
        except (EOFError, ConnectionError):
            raise BenchError("a client's process has ended") from None


async def _serve() -> None:
    """Read a load, connect, and run it once the other clients are connected too."""
    parent = socket.socket(fileno=_STDIN)
    reader, writer = await asyncio.open_connection(sock=parent, limit=_LONGEST_LINE)

    def say(state: ClientState) -> None:
        writer.write(msgspec.json.encode(state) + b"\n")

    load = Load(msgspec.json.decode(await reader.readline(), type=ClientLoad))
    try:
        await load.connect()
    except OSError as error:
        say(ClientState(cannot_connect=str(error)))
        await writer.drain()
        return
    say(ClientState())
    await reader.readline()
    # Whoever started this process ends before the load does: nobody wants the result.
    watching = asyncio.create_task(_exit_at_end_of(reader))
    running = asyncio.create_task(load.run())
    while not (await asyncio.wait([running], timeout=_SAY_SECONDS))[0]:
        say(ClientState(done=load.done()))
    say(ClientState(result=running.result()))
    await writer.drain()
    await watching


async def _exit_at_end_of(reader: StreamReader) -> None:
    await reader.read()
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve())
