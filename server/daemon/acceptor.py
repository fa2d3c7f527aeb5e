"""Accepts connections of the socket on which all API processes listen."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Final

from server.observe.shared_cells import SharedCell

_AT_ONCE: Final = 8
"""The event loop may be back after milliseconds only, where it has many streams."""
_MOMENT_S: Final = 1e-3
_log = logging.getLogger("penstock")


class Acceptor:
    """Takes for an API process as many connections as the others have, and a quarter more.

    The kernel wakes them all for a connection, and the first that runs would take a whole burst. So
    one that has more than another waits for a moment before it takes one that is still there.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], Awaitable[object]],
        count: Callable[[], int],
        connections: SharedCell,
    ) -> None:
        """Begin. `connect` sets a connection up, and raises OSError where that fails, `count` tells
        how many are open, and `connections` has that of each process."""
        # A property of the socket, which all API processes share.
        listener.setblocking(False)
        self._listener, self._connect = listener, connect
        self._count, self._connections = count, connections
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._take)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def publish(self) -> int:
        """Tell the others how many connections are open, and return that."""
        return self._connections.set(self._count() + len(self._opening))

    def _take(self, owed: int = 0) -> None:
        """Take connections up to the share of this process, and `owed` ones in any case."""
        for taken in range(_AT_ONCE):
            own, least = self.publish(), self._connections.least()
            if taken >= owed and own > least + least // 4:
                break
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno == errno.EMFILE:
                    _log_full(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                break
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            return
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_MOMENT_S, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._listener, self._take)
        self._take(owed=1)

    async def _open(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the client has left, or its handshake has failed
            await self._connect(connection)


@cache
def _log_full(limit: int) -> None:
    _log.error(
        "all %d files that this process may open are open: new connections wait until others end. "
        "Raise the limit (ulimit -n, systemd: LimitNOFILE=)",
        limit,
    )
