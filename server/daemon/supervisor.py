"""Starts the daemon's processes, watches them, and ends them all together."""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from server.daemon.parts import KeptRunning, Part, RunningPart, Supervised, SupervisedNode
from server.daemon.run import RunningParts, StartError, cause_of
from server.event_loop import lasting_task, until_first
from server.settings.settings import ServerConfig
from workers.contract.process import BEAT_SECONDS, DRAIN_SIGNAL, SILENT_BEATS


class Hangup:
    """Handles SIGHUP from its making on. Until somebody follows, the signal is kept, and the end of
    the terminal ends the process."""

    def __init__(self) -> None:
        # `nohup` has it ignored.
        self._ends_us = _is_open() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._kept = False
        signal.signal(signal.SIGHUP, self._keep)

    def terminal_is_closed(self) -> bool:
        """Whether the terminal has been closed, which ends what runs in it (but for `nohup`)."""
        return self._ends_us and not _is_open()

    def follow(self, on_hangup: Callable[[], None]) -> None:
        """Call `on_hangup` in the running loop for each signal, and now if one was kept."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        if self._kept:
            on_hangup()

    def _keep(self, _number: int, _frame: FrameType | None) -> None:
        if self.terminal_is_closed():
            raise SystemExit(128 + signal.SIGHUP)
        self._kept = True


def _is_open() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False


_ANSWER_S = 1.5
"""For the API processes to answer every client once no engine can finish a request."""
_CAUSE_S = 0.2
"""Until a worker that somebody has killed is noticed: its core ends too, maybe noticed first."""
_NODE_CAUSE_S = 2.0
"""The same for a node, whose loss is known by its connection, after that of its workers."""
_LAST_WORDS_S = 1.0
"""After a second signal: for the API processes to answer their clients."""
_TERMINATE_S = 1.0
"""From SIGTERM to SIGKILL."""
_DRAIN_MARGIN_S = 7.0
"""Time to close and exit, beyond the drain timeout.

A second for last answers, two for connections, one each for traces, the access log and the log.
"""

_log = logging.getLogger("penstock")


class Supervisor:
    """One life of the daemon: `run` returns its exit code."""

    def __init__(
        self,
        parts: Sequence[Part],
        config: ServerConfig,
        hangup: Hangup,
        *,
        until_ready: Callable[[], Coroutine[object, object, None]],
        on_started: Callable[[Sequence[RunningPart]], None],
        on_ready: Callable[[float], None],
        on_hangup: Callable[[], None],
        nodes: Sequence[SupervisedNode] = (),
    ) -> None:
        """The daemon lives as long as its `parts` do, and the batch process is started again. With
        a `stall_timeout` of 0 none is watched. `on_started` gets all processes once they are
        spawned, and again after a restart, `on_ready` the seconds that the start took. `on_hangup`
        is called after SIGHUP, before the API processes get it. `nodes` run already."""
        self._parts = parts
        self._config = config
        self._hangup = hangup
        self._until_ready = until_ready
        self._on_started = on_started
        self._on_ready = on_ready
        self._on_hangup = on_hangup
        self._children = RunningParts(nodes)
        self._nodes = nodes
        self._kept: list[KeptRunning] = []
        self._lost: dict[str, list[Supervised]] = {}
        self._unlogged: list[str] = []
        self._serving = self._draining = False
        self._died = asyncio.Event()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._forced_by = 0

    async def run(self) -> int:
        """Start, serve, stop. No child outlives this call."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        self._hangup.follow(self._on_sighup)
        try:
            # Children inherit the block: the signal would end one that does not handle it yet. API
            # processes unblock it when they do.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
            try:
                for part in self._parts:
                    if part.role == "batch":
                        self._kept.append(KeptRunning(part, self._name_processes))
                    else:
                        self._children.append(RunningPart(part))
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
            self._name_processes()
            code = await self._start_and_serve()
        finally:
            await self._end(0.0 if self._force.is_set() else _TERMINATE_S)
        return 128 + self._forced_by if self._forced_by else code

    def _name_processes(self) -> None:
        self._on_started(self._processes())

    def _processes(self) -> list[RunningPart]:
        """All processes of this host."""
        own = [child for child in self._children if isinstance(child, RunningPart)]
        return [*own, *(kept.child for kept in self._kept)]

    def _on_signal(self, number: signal.Signals) -> None:
        """The first finishes the requests in flight and stops. A second one stops at once."""
        if self._stop.is_set():
            self._forced_by = number
            self._force.set()
        self._stop.set()

    def _on_sighup(self) -> None:
        """Also while the daemon starts or stops."""
        if self._hangup.terminal_is_closed():
            if not self._stop.is_set():  # a shell that ends sends another one
                self._on_signal(signal.SIGHUP)
            return
        self._on_hangup()
        for child in self._servers():
            child.signal(signal.SIGHUP)

    async def _start_and_serve(self) -> int:
        started, seconds = time.monotonic(), self._config.startup_timeout
        ready = self._children.until(self._until_ready(), seconds, " (--startup-timeout)")
        try:
            await until_first(ready, self._stop.wait())
        except StartError as error:
            # There is nobody to answer yet, and nothing must follow the line that says why.
            self._give_cause(str(error))
            await self._end(grace=0.0)
            _log.error("%s", error)
            return 1
        if self._stop.is_set():
            await self._drain()
            return 0
        self._on_ready(time.monotonic() - started)
        return await self._serve()

    async def _serve(self) -> int:
        """Until a signal comes or a part dies. Then the requests in flight are finished."""
        self._serving = True
        watch = lasting_task(self._watch(), "watch of heartbeats")
        for child in self._children:
            child.exit.add_done_callback(partial(self._on_exit, child))
        await until_first(self._died.wait(), self._stop.wait())
        await self._drain()
        watch.cancel()
        self._serving = False
        self._log_losses()
        return 1 if self._lost else 0

    async def _watch(self) -> None:
        """Kill what stands still, which is then a death like any other. Engines watch their
        workers themselves: they know whether one has anything to do."""
        # In Python one large request, or file, can keep a process from its loop for seconds.
        patient = self._config.stall_timeout / BEAT_SECONDS
        limits = {"engine": SILENT_BEATS, "api": patient, "batch": patient}
        while self._config.stall_timeout:
            await asyncio.sleep(BEAT_SECONDS)
            for child in self._processes():
                limit = limits.get(child.part.role, math.inf)
                if not child.exit.done() and child.silent_beats() >= limit:
                    child.kill_stalled()

    def _on_exit(self, child: Supervised, _: asyncio.Future[int]) -> None:
        """A model is lost with its first part."""
        part = child.part
        drained = self._draining and part.role == "api" and child.exit.result() == 0
        if not self._serving or drained or self._force.is_set():
            return
        lost = part.model or part.title
        later = asyncio.get_running_loop().call_later
        # Whoever was killed is the cause. Others may have ended by another one's end.
        was_killed = child.exit.result() < 0
        wait = _NODE_CAUSE_S if self._nodes and not was_killed else _CAUSE_S
        if lost not in self._lost:
            self._unlogged.append(lost)
        self._lost.setdefault(lost, []).append(child)
        later(wait, self._log_losses)
        if part.role in ("engine", "node"):
            later(wait, self._kill_model, part.model)

    def _log_losses(self) -> None:
        """Name the causes. What runs elsewhere is then finished."""
        for lost in self._unlogged:
            cause = f"the {cause_of(self._lost[lost])}"
            _log.error("%s; stopping", cause)
            self._give_cause(cause)
        self._unlogged.clear()
        self._died.set()

    def _give_cause(self, cause: str) -> None:
        """Have the nodes fail when they are ended."""
        for node in self._nodes:
            node.cause = cause

    def _kill_model(self, model: str | None) -> None:
        """End what is left of a model: workers that have nobody to work for, an engine without
        them. One that stands still would not even notice."""
        for child in self._children:
            if child.part.model == model:
                child.signal(signal.SIGKILL)

    def _can_finish(self) -> bool:
        """Whether a whole model is left, and an API process to answer for it."""
        models = {child.part.model for child in self._children if child.part.model is not None}
        return bool(models - self._lost.keys()) and any(not c.exit.done() for c in self._servers())

    def _servers(self) -> list[Supervised]:
        return [child for child in self._children if child.part.role == "api"]

    async def _drain(self) -> None:
        """Have the API processes finish what runs and exit: all others are idle then."""
        self._draining = True
        for kept in self._kept:
            await kept.stop()
        if not self._lost:
            _log.info("stopping: up to %g s to finish what runs", self._config.drain_timeout)
        seconds = self._config.drain_timeout + _DRAIN_MARGIN_S
        servers = self._servers()
        for child in servers:
            child.signal(DRAIN_SIGNAL)
        await until_first(
            _wait(servers, seconds if self._can_finish() else _ANSWER_S), self._force.wait()
        )
        if self._force.is_set():
            for child in servers:
                child.signal(DRAIN_SIGNAL)
            await _wait(servers, _LAST_WORDS_S)

    async def _end(self, grace: float) -> None:
        """SIGTERM to all that are left, a moment, SIGKILL."""
        for kept in self._kept:
            await kept.stop()
        if grace:
            for child in self._children:
                child.signal(signal.SIGTERM)
            await _wait(self._children, grace)
        for child in self._children:
            child.signal(signal.SIGKILL)
        await _wait(self._children, None)


async def _wait(children: Sequence[Supervised], seconds: float | None) -> None:
    if children:
        await asyncio.wait([child.exit for child in children], timeout=seconds)
