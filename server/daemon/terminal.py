"""The terminal from which the daemon was started, if any: SIGHUP has two meanings there."""

import os
import signal
from contextlib import suppress


class Terminal:
    """Tells the SIGHUP of a terminal that is closed from one that was sent."""

    def __init__(self) -> None:
        """To be made before SIGHUP is handled: `nohup` has it ignored."""
        self._ends_us = _is_open() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def has_ended_us(self) -> bool:
        """Whether the terminal has been closed, which ends what runs in it (but for `nohup`)."""
        return self._ends_us and not _is_open()


def _is_open() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
