"""A part of the daemon that runs, and whether its heartbeats still come."""

import signal

from server.child_process import ChildProcess
from server.daemon.child_commands import Part
from workers.contract.process import BEAT_SECONDS

_ALL_BEATS = 1 << 16


class RunningPart(ChildProcess):
    """The process of `part`. What comes from its socket are heartbeats."""

    def __init__(self, part: Part) -> None:
        """Start it. Raises OSError."""
        inherited = () if part.inherited_fd is None else (part.inherited_fd,)
        super().__init__(part.command, part.environment, pass_fds=inherited)
        self.part = part
        self._silent = 0
        self._stall = ""
        self.exit.add_done_callback(lambda _: self.socket.close())

    def silent_beats(self) -> int:
        """For how many calls in a row no heartbeat has come, if called every BEAT_SECONDS."""
        try:
            received = bool(self.socket.recv(_ALL_BEATS))
        except BlockingIOError:
            received = False
        self._silent = 0 if received else self._silent + 1
        return self._silent

    def kill_stalled(self) -> None:
        """Kill it because it stands still."""
        seconds = self._silent * BEAT_SECONDS
        self._stall = f"stood still (no heartbeat for {seconds:g} s) and was killed"
        self.signal(signal.SIGKILL)

    def end(self) -> str:
        return self._stall or super().end()
