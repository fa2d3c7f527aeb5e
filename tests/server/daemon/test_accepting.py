"""A burst of connections is accepted in few turns of a busy loop."""

import asyncio
import os
import socket

import uvloop

from server.daemon.api_process import listening_sockets

CONNECTIONS = 40


async def turns_to_accept(listeners: list[socket.socket]) -> int:
    """Connections wait; how many turns does the loop make until all of them are accepted?"""
    loop, accepted, turns = asyncio.get_running_loop(), list[asyncio.Protocol](), 0

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(self)

    waiting = [socket.create_connection(listeners[0].getsockname()) for _ in range(CONNECTIONS)]
    servers = [await loop.create_server(Accepted, sock=each) for each in listeners]
    while len(accepted) < CONNECTIONS:
        await asyncio.sleep(0)
        turns += 1
    for server in servers:
        server.close()
    for connection in waiting:
        connection.close()
    return turns


def test_several_connections_are_accepted_in_a_turn() -> None:
    turns: list[int] = []
    for several in (False, True):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners = listening_sockets(listener) if several else [listener]
        turns.append(uvloop.run(turns_to_accept(listeners)))
    one_a_turn, several_a_turn = turns
    assert several_a_turn < one_a_turn / 4


def test_none_of_them_blocks_at_any_time() -> None:
    """Other processes accept from the same socket meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_blocking(listener.fileno(), False)  # as another process has set it
        copies = listening_sockets(listener)
        assert not any(map(os.get_blocking, [copy.fileno() for copy in copies]))
        for copy in copies:
            copy.close()
