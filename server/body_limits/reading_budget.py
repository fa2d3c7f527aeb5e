"""The bytes of bodies that are on their way: a bound for all of a process together."""

from collections.abc import Generator
from contextlib import contextmanager

from engine_core.refusal import RefusalError

_UNCOUNTED = 16 << 10
"""Bytes of each body. So slow large bodies never stand in the way of a usual request; connections
are bounded by the limit on open files."""


class ReadingBudget:
    """Counts what has come of bodies that are not whole yet, but for the beginning of each."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    @contextmanager
    def body(self, length: int) -> Generator["BodyBytes"]:
        """While one of `length` bytes is read. Raises RefusalError `overloaded` if the others fill
        the budget and it would count."""
        if length > _UNCOUNTED and self._bytes >= self._max_bytes:
            raise self._full()
        own = BodyBytes(self)
        try:
            yield own
        finally:
            own.release()

    def take(self, size: int) -> None:
        """Raises RefusalError `overloaded` if so many bytes more are too many."""
        if self._bytes + size > self._max_bytes:
            raise self._full()
        self._bytes += size

    def give_back(self, size: int) -> None:
        """So many of the bytes that were taken are held no longer."""
        self._bytes -= size

    def _full(self) -> RefusalError:
        message = f"bodies of {self._max_bytes} bytes are being read; try again later"
        return RefusalError("overloaded", message)


class BodyBytes:
    """What is held of one body."""

    def __init__(self, budget: ReadingBudget) -> None:
        self._budget = budget
        self._size = self._counted = 0

    def add(self, size: int) -> None:
        """So much more has come. Raises RefusalError `overloaded`."""
        self._size += size
        more = max(0, self._size - _UNCOUNTED) - self._counted
        if more:
            self._budget.take(more)
            self._counted += more

    def release(self) -> None:
        """Nothing of what has come is held any longer."""
        self._budget.give_back(self._counted)
        self._size = self._counted = 0
