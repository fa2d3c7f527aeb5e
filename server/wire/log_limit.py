"""What clients can make the log say: a few lines at a time, whatever they send."""

import asyncio
import logging
from typing import Final

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
