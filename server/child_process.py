"""A child process in an event loop: a socket to it, its signals and its exit."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence


class ChildProcess:
    """A running child in a session of its own: a terminal's Ctrl-C reaches only its parent.

    Its standard input is one end of a socket pair whose other end is `socket` (not blocking). The
    kernel closes ours when this process ends, however it ends, and the child then exits. `exit`
    becomes its status. Signals go through a pidfd, which can never mean another process.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        answers: bool = False,
    ) -> None:
        """Start it. `pass_fds` stay open in it; if it `answers`, its standard output is the same
        socket. Raises OSError."""
        self.socket, theirs = socket.socketpair()
        try:
            self.socket.setblocking(False)
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno() if answers else None,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            try:
                self._pidfd = os.pidfd_open(self._process.pid)
            except OSError:  # no file descriptor is left
                self._process.kill()
                self._process.wait()
                raise
        except OSError:
            self.socket.close()
            raise
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exit.get_loop().add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        """Its process id, which another process may have once it has exited."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has exited."""
        if not self.exit.done():
            signal.pidfd_send_signal(self._pidfd, number)

    def end(self) -> str:
        """How it ended, in words."""
        code = self.exit.result()
        return f"exited with status {code}" if code >= 0 else f"was killed by {_name(-code)}"

    def _on_exit(self) -> None:
        self.exit.get_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exit.set_result(self._process.wait())


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
