"""`penstock serve` as a child process of a measurement."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from benchmarks.processes import running_command

_READY = re.compile(r"is ready on (http\S+)")
_STOP_SECONDS = 30


class RunningDaemon:
    """A daemon that is ready: its address, its process id, and the seconds that it took."""

    def __init__(self, process: "subprocess.Popen[str]", started: float) -> None:
        """Raises RuntimeError, with the log, if it ends before it is ready."""
        self.pid, self.url, self.seconds = process.pid, "", 0.0
        self._process, self._log = process, ""
        self._ready_or_ended = threading.Event()
        reader = threading.Thread(target=self._read, args=(started,), daemon=True)
        reader.start()
        self._ready_or_ended.wait()
        if not self.url:
            raise RuntimeError(f"penstock serve did not become ready:\n{self._log}")

    def exit_code(self, seconds: float) -> int | None:
        """Wait so long for its end; None if it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def _read(self, started: float) -> None:
        """Read its log to the end: it must never wait for a reader."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log += line
            if (ready := _READY.search(line)) is not None:
                self.seconds = time.monotonic() - started
                self.url = ready[1]
                self._ready_or_ended.set()
        self._ready_or_ended.set()


@contextmanager
def running_daemon(
    *arguments: str, environment: Mapping[str, str] = os.environ
) -> Generator[RunningDaemon]:
    """`penstock serve` with `arguments`, on a free port, until the block ends.

    Raises RuntimeError if it does not become ready.
    """
    started = time.monotonic()
    command = [sys.executable, "-P", "-m", "server", "serve", "--port", "0", *arguments]
    # Its children end with it, however it ends.
    with running_command(command, environment, stderr=subprocess.PIPE) as process:
        yield RunningDaemon(process, started)
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)


@contextmanager
def on_core(core: int) -> Generator[None]:
    """This thread, and what it starts meanwhile, runs on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
