"""One client's process: `python -P -m server.bench.load.client_main`, with its other end on a
socket that is its standard input (`clients.py`)."""

import asyncio
import os
import signal
import socket
from asyncio import StreamReader, StreamWriter

import msgspec
import uvloop

from server.bench.load.clients import LONGEST_LINE, ClientState
from server.bench.load.load_generator import ClientLoad, Load

_SAY_SECONDS = 0.5
_STDIN = 0


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    """Read a load, connect, and run it once the other clients are connected too."""

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


async def _main() -> None:
    parent = socket.socket(fileno=_STDIN)
    await serve(*await asyncio.open_connection(sock=parent, limit=LONGEST_LINE))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_main())
