"""The daemon's own parts as child processes of a measurement. All end by pid."""

import asyncio
import subprocess
import time
from collections.abc import Coroutine, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from server.bench.errors import BenchError
from server.daemon.parts import Part, daemon_parts
from server.settings.server_config import Limits, ServedModel, ServerConfig

_ProcessT = TypeVar("_ProcessT", bound="subprocess.Popen[str] | subprocess.Popen[bytes]")
_ResultT = TypeVar("_ResultT")

_NO_LISTENER = -1
_POLL_SECONDS = 0.2
_START_ORDER = ("worker", "engine", "api")
"""What ends last is started first: a stage that went before its engine would be an error to tell,
and so would an engine that went before its API process."""


def daemon_of(
    models: Sequence[ServedModel],
    directory: Path,
    listening_fd: int = _NO_LISTENER,
    api_workers: int = 1,
) -> list[Part]:
    """The processes that `penstock serve` would start for `models`.

    Their configurations are written into `directory`.
    """
    config = ServerConfig(
        host="127.0.0.1",
        port=0,
        api_workers=api_workers,
        drain_timeout=1.0,
        log_level="warning",
        limits=Limits(),
        models=tuple(models),
    )
    return daemon_parts(config, listening_fd, directory)


@contextmanager
def running_part(part: Part) -> Generator[subprocess.Popen[bytes]]:
    """A part of the daemon. Its standard input is a pipe that closes with us (see
    `workers.contract.supervision.exit_with_parent`); a terminal's Ctrl-C reaches only us."""
    process = subprocess.Popen(
        part.command,
        env=part.environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
        pass_fds=() if part.inherited_fd is None else (part.inherited_fd,),
    )
    with killed_at_the_end(process):
        yield process


@contextmanager
def killed_at_the_end(process: _ProcessT) -> Generator[_ProcessT]:
    """However the block ends, so does the process."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Children:
    """Processes that run while something is measured, with the titles of their parts."""

    def __init__(self, running: list[tuple[str, subprocess.Popen[bytes]]]) -> None:
        self._running = running

    def check(self) -> None:
        """Raises BenchError if one has ended."""
        for title, process in self._running:
            if (code := process.poll()) is not None:
                raise BenchError(f"the {title} ended with status {code}")

    async def until(self, ready: Coroutine[object, object, _ResultT], seconds: float) -> _ResultT:
        """Wait for `ready`. Raises BenchError after `seconds`, or when a process has ended."""
        waiting = asyncio.ensure_future(ready)
        deadline = time.monotonic() + seconds
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=_POLL_SECONDS)
                self.check()
                if time.monotonic() > deadline and not waiting.done():
                    raise BenchError(f"not ready after {seconds:g} s")
            return waiting.result()
        finally:
            waiting.cancel()


@contextmanager
def running_parts(parts: Sequence[Part]) -> Generator[Children]:
    """All of them, until the block ends."""
    with ExitStack() as running:
        in_order = sorted(parts, key=lambda part: _START_ORDER.index(part.role))
        yield Children([(p.title, running.enter_context(running_part(p))) for p in in_order])
