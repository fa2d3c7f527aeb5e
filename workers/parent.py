"""A child of the daemon and its supervisor: it must not outlive it, and says that it goes on.

Both go over the socket that is the child's standard input. The supervisor holds the other end and
never writes to it; the kernel closes it when the supervisor dies, however it dies.
"""

import os
import socket
import threading
from contextlib import suppress

BEAT_SECONDS = 1.0
"""Between two heartbeats, of whatever process to whoever watches it."""

SILENT_BEATS = 8
"""In a row, of a process without an excuse, and it stands still: that is noticed within 10 s."""

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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(_STDIN))

    def beat(self) -> None:
        """Never blocks, never fails: there may be nobody who listens."""
        with suppress(OSError):
            self._socket.send(b".", socket.MSG_DONTWAIT)
