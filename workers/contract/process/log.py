"""The log of a process: lines on its standard error with time, level and role."""

import logging
import time
from types import TracebackType
from typing import Final

from workers.contract.process.endings import end_with_threads
from workers.contract.process.standard_error import open_standard_error

TIME_FORMAT: Final = "%H:%M:%S"
_TRACEBACKS, _SECONDS = 5, 10.0
"""So many tracebacks are logged in so many seconds: a client may be able to cause them."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LogFormatter(logging.Formatter):
    """Lines of `role`; beyond the first few in a while, an error has its line without traceback."""

    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {role}: %(message)s", TIME_FORMAT)
        self._since = -_SECONDS
        self._tracebacks = 0

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 (logging's name)
        """The traceback, or a line in its place."""
        if (now := time.monotonic()) - self._since >= _SECONDS:
            self._since, self._tracebacks = now, 0
        self._tracebacks += 1
        if self._tracebacks > _TRACEBACKS:
            return f"(no traceback: there were {_TRACEBACKS} in the last {_SECONDS:g} s)"
        return super().formatException(ei)


def open_log(role: str, level: str) -> None:
    """Begin the log of a child process of the daemon. An exception that ends one of its threads
    ends the process from now on."""
    open_standard_error(
        lambda lines: f"{time.strftime(TIME_FORMAT)} WARNING {role}: {lines:,} lines were dropped"
    )
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    end_with_threads()
