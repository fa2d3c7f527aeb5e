"""SIGHUP. Where the daemon was started from a terminal, it has two meanings: that the terminal was
closed, and that credentials shall be read again."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType


class Hangup:
    """Handles SIGHUP from its making on, which is before anything that may take long.

    Until somebody follows, the signal is kept; the end of the terminal ends the process.
    """

    def __init__(self) -> None:
        # `nohup` has it ignored.
        self._ends_us = _is_open() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._kept = False
        signal.signal(signal.SIGHUP, self._keep)

    def terminal_is_closed(self) -> bool:
        """Whether the terminal has been closed, which ends what runs in it (but for `nohup`)."""
        return self._ends_us and not _is_open()

    def follow(self, on_hangup: Callable[[], None]) -> None:
        """Call `on_hangup` in the running loop for each signal, and now if one was kept."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        if self._kept:
            on_hangup()

    def _keep(self, _number: int, _frame: FrameType | None) -> None:
        if self.terminal_is_closed():
            raise SystemExit(128 + signal.SIGHUP)
        self._kept = True


def _is_open() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
