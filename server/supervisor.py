"""Starts the daemon's processes, watches them, and ends them all together."""

import asyncio
import logging
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from server.child_process import ChildProcess
from server.processes import Part

_READY_POLL_S = 0.05
_ANSWER_S = 2.0
"""After a death: for the API processes to answer what is in flight."""
_TERMINATE_S = 1.5
"""From SIGTERM to SIGKILL."""
_DRAIN_MARGIN_S = 3.0
"""Beyond the drain timeout, for an API process to close and exit."""

_log = logging.getLogger("penstock")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines in seconds: to become ready, and to finish what runs after a first SIGTERM."""

    startup_timeout: float
    drain_timeout: float


class Child(ChildProcess):
    """A running part. Its standard input is a pipe that is never written: it closes with us."""

    def __init__(self, part: Part) -> None:
        """Start it, in a session of its own: a terminal's Ctrl-C reaches only the supervisor."""
        self.part = part
        super().__init__(
            subprocess.Popen(
                part.command,
                env=part.environment,
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=() if part.inherited_fd is None else (part.inherited_fd,),
            )
        )


class Supervisor:
    """One life of the daemon: `run` returns its exit code."""

    def __init__(
        self,
        parts: Sequence[Part],
        timing: Timing,
        *,
        is_ready: Callable[[], Awaitable[bool]],
        on_started: Callable[[], None],
        on_ready: Callable[[float], None],
    ) -> None:
        """`on_started` is called when every process has been spawned, `on_ready` with the seconds
        that the start took."""
        self._parts = parts
        self._timing = timing
        self._is_ready = is_ready
        self._on_started = on_started
        self._on_ready = on_ready
        self._children: list[Child] = []
        self._stop = asyncio.Event()
        self._forced_by = 0

    async def run(self) -> int:
        """Start, serve, stop. No child outlives this call."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            for part in self._parts:
                self._children.append(Child(part))
            self._on_started()
            code = await self._serve()
        finally:
            await self._end(_TERMINATE_S)
        return 128 + self._forced_by if self._forced_by else code

    def _on_signal(self, number: signal.Signals) -> None:
        """The first asks to finish; a second one ends everything at once."""
        if not self._stop.is_set():
            self._stop.set()
            return
        self._forced_by = number
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _serve(self) -> int:
        """Until a part dies or someone asks to stop."""
        died = asyncio.create_task(self._first_death())
        stopped = asyncio.create_task(self._stop.wait())
        ready = asyncio.create_task(self._until_ready())
        try:
            await asyncio.wait(
                (died, stopped, ready),
                timeout=self._timing.startup_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ready.done():
                self._on_ready(ready.result())
                await asyncio.wait((died, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return await self._drain()
            if died.done():
                return await self._fail(died.result(), serving=ready.done())
            _log.error("not ready after %g s (--startup-timeout)", self._timing.startup_timeout)
            return 1
        finally:
            for task in (died, stopped, ready):
                task.cancel()

    async def _first_death(self) -> Child:
        exits = [child.exit for child in self._children]
        await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        return next(child for child in self._children if child.exit.done())

    async def _until_ready(self) -> float:
        started = time.monotonic()
        while not await self._is_ready():  # noqa: ASYNC110 (only asking again tells)
            await asyncio.sleep(_READY_POLL_S)
        return time.monotonic() - started

    async def _fail(self, dead: Child, *, serving: bool) -> int:
        """A part is gone: the API processes answer what is in flight, then everything ends."""
        if serving:
            _log.error("the %s %s; stopping", dead.part.title, dead.end())
            await _wait([c for c in self._children if c.part.role == "api"], _ANSWER_S)
        else:
            # There is nobody to answer yet, and nothing must follow the line that says why.
            await self._end(grace=0.0)
            _log.error("the %s %s while starting", dead.part.title, dead.end())
        return 1

    async def _drain(self) -> int:
        """The API processes finish what runs and exit; the others are idle then."""
        servers = [child for child in self._children if child.part.role == "api"]
        _log.info("stopping: up to %g s to finish what runs", self._timing.drain_timeout)
        for child in servers:
            child.signal(signal.SIGTERM)
        await _wait(servers, self._timing.drain_timeout + _DRAIN_MARGIN_S)
        dead = [c for c in self._children if c.part.role != "api" and c.exit.done()]
        if dead and not self._forced_by:
            _log.error("the %s %s while requests were finishing", dead[0].part.title, dead[0].end())
            return 1
        return 0

    async def _end(self, grace: float) -> None:
        """SIGTERM to all that are left, a moment, SIGKILL."""
        if grace:
            for child in self._children:
                child.signal(signal.SIGTERM)
            await _wait(self._children, grace)
        for child in self._children:
            child.signal(signal.SIGKILL)
        await _wait(self._children, None)


async def _wait(children: list[Child], seconds: float | None) -> None:
    """Until all have exited, or for that many seconds."""
    if children:
        await asyncio.wait([child.exit for child in children], timeout=seconds)
