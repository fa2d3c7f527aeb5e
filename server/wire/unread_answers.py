"""Answers that clients do not read: how much of them waits, and who is cut off for that."""

import asyncio
import logging
from typing import Protocol

_LOOK_SECONDS = 1.0

_log = logging.getLogger("penstock.connections")


class Connection(Protocol):
    """A client that is being answered."""

    def unread_bytes(self) -> int:
        """About what of its answer is made, and not yet taken by the kernel."""
        ...

    def cut(self) -> None:
        """End it, whatever it has not read."""
        ...


class _Watched:
    """A connection whose client lags behind: how much it has read since, in `looks` looks."""

    def __init__(self, unread: int, now: float) -> None:
        self.unread, self.moved_at = unread, now
        self.taken = self.looks = 0

    def look(self, unread: int, taken: int, now: float) -> None:
        self.unread = unread
        self.looks += 1
        self.taken += taken
        if taken:
            self.moved_at = now

    @property
    def rate(self) -> float:
        """Bytes a look."""
        return self.taken / max(self.looks, 1)


class UnreadAnswers:
    """Watches the connections of one process whose clients lag behind, once a second. One that has
    read nothing at all for `max_seconds` is cut off. Where all together have more than `max_bytes`
    unread, those are that have read least.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes, self._max_seconds = max_bytes, max_seconds
        self._watched: dict[Connection, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: Connection) -> None:
        """Its client lags behind from now on."""
        loop = asyncio.get_running_loop()
        self._watched[connection] = _Watched(connection.unread_bytes(), loop.time())
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def forget(self, connection: Connection) -> None:
        """Its client has caught up, or is gone. Idempotent."""
        self._watched.pop(connection, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for connection, watched in self._watched.items():
            unread = connection.unread_bytes()
            watched.look(unread, max(0, watched.unread - unread), now)
        self._cut_still(now)
        self._cut_excess()
        if self._watched:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _cut_still(self, now: float) -> None:
        limit = now - self._max_seconds
        for connection in [c for c, watched in self._watched.items() if watched.moved_at < limit]:
            self._cut(connection, f"it has read nothing for {self._max_seconds:g} s")

    def _cut_excess(self) -> None:
        excess = sum(watched.unread for watched in self._watched.values()) - self._max_bytes
        slowest = sorted(self._watched.items(), key=lambda item: item[1].rate)
        for connection, watched in slowest:
            if excess <= 0:
                return
            excess -= watched.unread
            self._cut(connection, "all answers that are not read are too much")

    def _cut(self, connection: Connection, why: str) -> None:
        unread = self._watched.pop(connection).unread
        _log.warning("a client that does not read its answer is cut off, %d bytes: %s", unread, why)
        connection.cut()
