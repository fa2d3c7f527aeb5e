"""A progress bar for long work during start-up."""

import logging
import sys
import time

_WIDTH = 30
_LOG_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class ProgressBar:
    """A bar on standard error if that is a terminal, else a log line every few seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self.done = what, total, 0
        self._terminal = sys.stderr.isatty()
        self._logged = time.monotonic()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            print(file=sys.stderr)

    def advance(self, steps: int = 1) -> None:
        """Count `steps` more as done."""
        self.done += steps
        if self._terminal:
            filled = _WIDTH * self.done // self._total
            bar = "█" * filled + "░" * (_WIDTH - filled)
            line = f"\r{self._what} {bar} {self.done}/{self._total}"
            print(line, end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            _logger.info("%s: %d of %d", self._what, self.done, self._total)
