"""The bytes of bodies that are on their way: a bound for all of a process together."""

from collections.abc import Generator
from contextlib import contextmanager

from server.errors import APIError


class ReadingBudget:
    """Counts what has come of bodies that are not whole yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    @contextmanager
    def body(self) -> Generator["BodyBytes"]:
        """While one is read. Raises APIError `overloaded` if the others fill the budget."""
        if self._bytes >= self._max_bytes:
            raise self._full()
        own = BodyBytes(self)
        try:
            yield own
        finally:
            self._bytes -= own.size

    def take(self, size: int) -> None:
        """Raises APIError `overloaded` if so many bytes more are too many."""
        if self._bytes + size > self._max_bytes:
            raise self._full()
        self._bytes += size

    def _full(self) -> APIError:
        message = f"bodies of {self._max_bytes} bytes are being read; try again later"
        return APIError("overloaded", message, headers={"connection": "close"})


class BodyBytes:
    """What has come of one body; `size` of them are kept."""

    def __init__(self, budget: ReadingBudget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int) -> None:
        """Raises APIError `overloaded`."""
        self._budget.take(size)
        self.size += size
