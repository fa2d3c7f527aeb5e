"""A child process in an event loop: its signals and its exit go through a pidfd."""

import asyncio
import os
import signal
import subprocess


class ChildProcess:
    """A running child. Its pidfd can never mean another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """`process` has just been started; nobody else waits for it. Raises OSError, and ends it,
        where there is no file descriptor left."""
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = process
        self.exit.get_loop().add_reader(self._pidfd, self._on_exit)

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
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.exit.set_result(self._process.wait())


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
