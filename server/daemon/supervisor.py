"""Starts the daemon's processes, watches them, and ends them all together."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from server.daemon.groups import Group, NoRestartError, at_once, ever_later
from server.daemon.parts import Part, Role, RunningPart, Supervised, SupervisedNode
from server.daemon.run import RunningParts, StartError
from server.event_loop import lasting_task, until_first
from server.models.model_files import ModelFiles
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


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Work to be done at moments of the daemon's life.

    until_ready  waits until it serves
    on_started   gets all processes once they are spawned, and whenever some have been started again
    on_ready     gets the seconds that the start took
    on_hangup    after SIGHUP, before the API processes get it
    on_drain     before they are to drain
    """

    until_ready: Callable[[], Coroutine[object, object, None]]
    on_ready: Callable[[float], None]
    on_started: Callable[[Sequence[RunningPart]], None] = _nothing
    on_hangup: Callable[[], None] = _nothing
    on_drain: Callable[[], None] = _nothing


class Supervisor:
    """One life of the daemon: `run` returns its exit code."""

    def __init__(
        self,
        parts: Sequence[Part],
        config: ServerConfig,
        hangup: Hangup,
        moments: Moments,
        *,
        nodes: Sequence[SupervisedNode] = (),
        files: Mapping[str, ModelFiles],
    ) -> None:
        """The daemon lives as long as its `parts` do: what is lost is started again, but no more
        often than `max_restarts` allows. With a `stall_timeout` of 0 none is watched. `nodes` run
        already. `files` are those of each model."""
        self._parts = parts
        self._config = config
        self._hangup = hangup
        self._moments = moments
        self._nodes, self._files = nodes, files
        self._groups: list[Group] = []
        self._keeping: dict[Group, asyncio.Task[None]] = {}
        self._losing: list[Group] = []
        self._lost: list[Group] = []
        self._draining = False
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
            self._start()
            code = await self._start_and_serve()
        finally:
            await self._end(0.0 if self._force.is_set() else _TERMINATE_S)
        return 128 + self._forced_by if self._forced_by else code

    def _start(self) -> None:
        """Start all groups: an engine, or one of the other parts."""
        by_name: dict[str, list[Part]] = {}
        for part in self._parts:
            by_name.setdefault(part.group, []).append(part)
        for parts in by_name.values():
            self._groups.append(self._group(parts))
            if self._groups[-1].role == "batch":
                self._keep(self._groups[-1])
        self._name_processes()

    def _group(self, parts: Sequence[Part]) -> Group:
        model, config = parts[0].model, self._config
        if parts[0].role == "batch":
            return Group(parts, ever_later())
        return Group(
            parts,
            at_once(config.max_restarts, config.startup_timeout if model else 0.0),
            nodes=[] if model is None else self._nodes,
            files=[own for name, own in self._files.items() if model in (None, name)],
            spares=config.max_restarts > 0 and not self._nodes,
        )

    def _name_processes(self) -> None:
        processes = [process for group in self._groups for process in group.processes]
        self._moments.on_started(processes)

    def _children(self) -> RunningParts:
        """All but the batch process: those that end with the daemon, and it with them."""
        return RunningParts(
            child for group in self._groups if group.role != "batch" for child in group.children
        )

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
        self._moments.on_hangup()
        for child in self._servers():
            child.signal(signal.SIGHUP)

    async def _start_and_serve(self) -> int:
        started, seconds = time.monotonic(), self._config.startup_timeout
        ready = self._moments.until_ready()
        try:
            starting = self._children().until(ready, seconds, " (--startup-timeout)")
            await until_first(starting, self._stop.wait())
        except StartError as error:
            # There is nobody to answer yet, and nothing must follow the line that says why.
            self._give_cause(str(error))
            await self._end(grace=0.0)
            _log.error("%s", error)
            return 1
        if self._stop.is_set():
            await self._drain()
            return 0
        self._moments.on_ready(time.monotonic() - started)
        return await self._serve()

    async def _serve(self) -> int:
        """Until a signal comes, or something is lost for good. Then what runs is finished."""
        watch = lasting_task(self._watch(), "watch of heartbeats")
        for group in self._groups:
            if group.role != "batch":
                self._keep(group)
        await until_first(self._died.wait(), self._stop.wait())
        await self._drain()
        watch.cancel()
        for group in self._losing:
            self._lose(group, group.cause())
        return 1 if self._lost else 0

    async def _watch(self) -> None:
        """Kill what stands still, which is then a death like any other. Engines watch their
        workers themselves: they know whether one has anything to do."""
        # In Python one large request, or file, can keep a process from its loop for seconds.
        patient = self._config.stall_timeout / BEAT_SECONDS
        limits: dict[Role, float] = {"engine": SILENT_BEATS, "api": patient, "batch": patient}
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for group in self._groups:
                group.watch(limits if self._config.stall_timeout else {})

    def _keep(self, group: Group) -> None:
        self._keeping[group] = lasting_task(self._keep_running(group), f"keeping {group.name}")

    async def _keep_running(self, group: Group) -> None:
        """Start what is lost of a group again, until it is lost for good."""
        while True:
            await group.loss()
            if self._is_drained(group) or self._force.is_set():
                return
            # Whoever was killed is the cause. Others may have ended by another one's end.
            waits_for_nodes = self._nodes and not group.was_killed
            self._losing.append(group)
            try:
                await asyncio.sleep(_NODE_CAUSE_S if waits_for_nodes else _CAUSE_S)
            finally:
                self._losing.remove(group)
            pause = None if self._is_final(group) else group.pause()
            if pause is None:
                self._lose(group, group.cause())
                await group.end()
                return
            later = f" in {pause:g} s" if pause else ""
            _log.warning("%s; starting %s again%s", group.cause(), group.again(), later)
            await asyncio.sleep(pause)
            try:
                await group.start_again()
            except NoRestartError as error:
                self._lose(group, str(error))
                await group.end(0.0)
                return
            except OSError:  # no memory, for one: that is a loss once more
                continue
            self._name_processes()

    def _is_drained(self, group: Group) -> bool:
        done = group.role == "api" and all(each.exit.result() == 0 for each in group.ended())
        return self._draining and done

    def _is_final(self, group: Group) -> bool:
        """Whether nobody waits for it any more."""
        return self._draining and (group.role == "api" or group.core_is_lost)

    def _lose(self, group: Group, cause: str) -> None:
        """Name the cause. What runs elsewhere is then finished."""
        _log.error("%s; stopping", cause)
        self._give_cause(cause)
        self._lost.append(group)
        self._died.set()

    def _give_cause(self, cause: str) -> None:
        """Have the nodes fail when they are ended."""
        for node in self._nodes:
            node.cause = cause

    def _can_finish(self) -> bool:
        """Whether a whole model is left, and an API process to answer for it."""
        models = any(group.model and group not in self._lost for group in self._groups)
        return models and any(not child.exit.done() for child in self._servers())

    def _servers(self) -> list[Supervised]:
        return [child for child in self._children() if child.part.role == "api"]

    async def _drain(self) -> None:
        """Have the API processes finish what runs and exit: all others are idle then."""
        self._draining = True
        self._moments.on_drain()
        await self._stop_batches()
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

    async def _stop_batches(self) -> None:
        """End the batch process: what it was doing goes on at the next start. Idempotent."""
        for group in self._groups:
            if group.role == "batch":
                self._keeping[group].cancel()
                await group.stop()

    async def _end(self, grace: float) -> None:
        """SIGTERM to all that are left, a moment, SIGKILL."""
        await self._stop_batches()
        for task in self._keeping.values():
            task.cancel()
        children = self._children()
        if grace:
            for child in children:
                child.signal(signal.SIGTERM)
            await _wait(children, grace)
        everything = [*children, *(each for own in self._groups for each in own.spares.values())]
        for child in everything:
            child.signal(signal.SIGKILL)
        await _wait(everything, None)


async def _wait(children: Sequence[Supervised], seconds: float | None) -> None:
    if children:
        await asyncio.wait([child.exit for child in children], timeout=seconds)
