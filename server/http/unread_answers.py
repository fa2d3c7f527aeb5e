"""Answers that clients do not read: how much of them waits, and who is cut off for that."""

import asyncio
import logging
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.observe.request_record import RequestRecord
from server.service.ledger import Ledger

CONNECTION_LOG: Final = logging.getLogger("penstock.connections")
"""Clients make it speak, as often as they like: an API process puts a LogLimit on it."""


class LogLimit(logging.Filter):
    """Lets the first records of a logger through in each `seconds`, and counts the others: one line
    tells their number when that time is over.

    It belongs to loggers that are used in the event loop.
    """

    def __init__(self, logger: logging.Logger, *, first: int = 5, seconds: float = 10.0) -> None:
        super().__init__()
        self._logger = logger
        self._first, self._seconds = first, seconds
        self._seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is among the first."""
        if not self._seen:
            asyncio.get_running_loop().call_later(self._seconds, self._count_others)
        self._seen += 1
        return self._seen <= self._first

    def _count_others(self) -> None:
        more = self._seen - self._first
        self._seen = 0
        if more > 0:
            self._logger.warning("%d more in the last %g s", more, self._seconds)


_LOOK_SECONDS = 1.0
_NEW = 3
"""Looks at a connection before it can be among those that read least."""
_STEADY_BYTES = 16 << 10
"""Who reads so much between two looks is not cut off alone: one answer may be larger than what all
may have unread."""


class _Watched:
    """A connection whose client lags behind: how much it has read since, in `looks` looks. What is
    unsent only shrinks meanwhile: nothing is written until the client has caught up."""

    def __init__(self, unsent: int, now: float) -> None:
        self.unsent, self.moved_at = unsent, now
        self.unread, self.taken, self.looks = unsent, 0, 0

    def look(self, connection: HttpToolsProtocol, now: float) -> None:
        unsent = _unsent_bytes(connection)
        if unsent < self.unsent:
            self.taken += self.unsent - unsent
            self.moved_at = now
        self.unsent, self.unread = unsent, unsent + _held_bytes(connection)
        self.looks += 1

    @property
    def progress(self) -> tuple[bool, float, float]:
        """Sorts those first that read least; new ones come last."""
        return self.looks < _NEW, self.moved_at, self.taken / max(self.looks, 1)

    @property
    def is_steady(self) -> bool:
        """It reads, as far as one can tell."""
        return self.looks < _NEW or self.taken >= self.looks * _STEADY_BYTES


class UnreadAnswers:
    """Watches the connections of one process whose clients lag behind, once a second. One that has
    read nothing at all for `max_seconds` is cut off. What is unread counts in the ledger: where
    that is too much, those are cut off that read least, until only one is left that reads steadily.
    """

    def __init__(self, ledger: Ledger, max_seconds: float) -> None:
        self._ledger, self._max_seconds = ledger, max_seconds
        ledger.cut_unread = self._cut_excess
        self._watched: dict[HttpToolsProtocol, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: HttpToolsProtocol) -> None:
        """Its client lags behind from now on."""
        loop = asyncio.get_running_loop()
        watched = self._watched[connection] = _Watched(_unsent_bytes(connection), loop.time())
        self._ledger.unread += watched.unread
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def forget(self, connection: HttpToolsProtocol) -> None:
        """Its client has caught up, or is gone. Idempotent."""
        if (watched := self._watched.pop(connection, None)) is not None:
            self._ledger.unread -= watched.unread

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for connection, watched in self._watched.items():
            before = watched.unread
            watched.look(connection, now)
            self._ledger.unread += watched.unread - before
        self._cut_still(now)
        self._ledger.make_room()
        if self._watched:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _cut_still(self, now: float) -> None:
        limit = now - self._max_seconds
        for connection in [c for c, watched in self._watched.items() if watched.moved_at < limit]:
            self._cut(connection, f"it has read nothing for {self._max_seconds:g} s")

    def _cut_excess(self, excess: int) -> None:
        slowest = sorted(self._watched.items(), key=lambda item: item[1].progress)
        for connection, watched in slowest:
            if excess <= 0 or (len(self._watched) == 1 and watched.is_steady):
                return
            excess -= watched.unread
            self._cut(connection, "answers that are not read, and requests, are too much")

    def _cut(self, connection: HttpToolsProtocol, why: str) -> None:
        unread = self._watched[connection].unread
        self.forget(connection)
        message = "a client that does not read its answer is cut off, %d bytes: %s"
        CONNECTION_LOG.warning(message, unread, why)
        connection.transport.abort()


def _unsent_bytes(connection: HttpToolsProtocol) -> int:
    """What has been written, and not yet taken by the kernel."""
    return connection.transport.get_write_buffer_size()


def _held_bytes(connection: HttpToolsProtocol) -> int:
    """About what of the answer waits to be written."""
    record: RequestRecord | None = connection.scope.get("record")
    return 0 if record is None or record.held_bytes is None else record.held_bytes()
