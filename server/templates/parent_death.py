"""The end of a template's process with the API process that started it, also while it renders."""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_STDIN = 0


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends: in an API process,
    the one of its event loop. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # A parent that had ended before sends no signal any more, but it has closed our input.
    poll = select.poll()
    poll.register(_STDIN, 0)
    if poll.poll(0):
        sys.exit(1)
