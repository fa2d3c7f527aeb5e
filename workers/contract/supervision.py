"""A child of the daemon and its supervisor: it must not outlive it, and says that it goes on.

Both go over the socket that is the child's standard input. The supervisor holds the other end and
never writes to it; the kernel closes it when the supervisor dies, however it dies.
"""

import os
import socket
import stat
import threading
from contextlib import suppress

BEAT_SECONDS = 1.0
"""Between two heartbeats of a process, to whichever other watches it."""

SILENT_BEATS = 8
"""A process that misses so many in a row stands still; it is noticed within 10 s."""

_STDIN = 0


def exit_with_parent() -> None:
    """End this process when its standard input closes."""

    def watch() -> None:
        # A supervisor that had heartbeats left to read ends the socket with an error.
        with suppress(ConnectionResetError):
            # Not sys.stdin: a thread that holds its lock cannot be ended with the interpreter.
            while os.read(_STDIN, 1):
                pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class Heartbeat:
    """Tells the supervisor that this process goes on. It is for the loop to beat, every
    BEAT_SECONDS: a thread would beat on when the loop stands still."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if stat.S_ISSOCK(os.fstat(_STDIN).st_mode):  # a benchmark, say, does not listen
            self._socket = socket.socket(fileno=os.dup(_STDIN))

    def beat(self) -> None:
        """Never blocks, never fails: the supervisor may be stopped, or gone."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(b".", socket.MSG_DONTWAIT)
