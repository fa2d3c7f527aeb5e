"""A child process of the daemon: it ends when its supervisor dies, and reports that it is alive.

There are two watches. The daemon's supervisor (`server/daemon/supervisor.py`) watches engine cores,
API processes and the batch process, whose `Heartbeat` goes to it. An engine core watches its
workers, which send it `WorkerBeat` messages instead (`workers/stage/worker.py`,
`engine_core/executor/stage_link.py`).

A child's standard input is a socket, on which it sends its heartbeats. The supervisor holds the
other end and never writes to it; the kernel closes it when the supervisor dies, however it dies.
"""

import os
import signal
import socket
import stat
import threading
from contextlib import suppress

BEAT_SECONDS = 1.0
"""Seconds between two heartbeats of any process, to the supervisor or to an engine core."""

SILENT_BEATS = 8
"""A process that misses so many in a row stands still; it is noticed within 10 s."""

DRAIN_SIGNAL = signal.SIGUSR1
"""From the supervisor to an API process: finish what runs and exit; a second one ends what runs.
Whoever sends it SIGTERM means its death."""

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
    """The heartbeat of a process, to the daemon's supervisor.

    The process's loop calls `beat` every BEAT_SECONDS: a thread would continue when the loop stands
    still, which is what the supervisor is to notice.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if stat.S_ISSOCK(os.fstat(_STDIN).st_mode):  # a benchmark passes a pipe
            self._socket = socket.socket(fileno=os.dup(_STDIN))

    def beat(self) -> None:
        """Send one. Never blocks and never fails: the supervisor may be stopped, or dead."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(b".", socket.MSG_DONTWAIT)
