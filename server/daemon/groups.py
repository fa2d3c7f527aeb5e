"""The daemon's parts by what is lost together, and started again together."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

from engine_core.loop.restarts import RestartLimit
from server.daemon.parts import Part, Role, RunningPart, Supervised
from server.daemon.run import cause_of
from server.event_loop import in_thread
from server.models.model_files import ModelFiles, ModelFilesError

Pause = Callable[[], float | None]
"""Counts a loss. Returns after how many seconds to start again, None for never."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0

_GRACE_S = 1.0
"""From SIGTERM to SIGKILL."""
_SPARE_AFTER_S = 20.0
"""From a start until what is spared gets a spare: it would make the start slower."""
_END_S = 60.0
"""From SIGKILL until a process must be gone: one whose device is broken may never be."""


class NoRestartError(Exception):
    """Another start of lost parts is impossible. One line says why."""


def at_once(max_restarts: int, start_timeout: float) -> Pause:
    """Start again at once, as often as a `RestartLimit` allows."""
    limit = RestartLimit(max_restarts, start_timeout)
    return lambda: 0.0 if limit.allow(time.monotonic()) else None


def ever_later() -> Pause:
    """Start again for ever: what keeps ending is started less and less often."""
    pause, last = _FIRST_PAUSE_S, -_LONGEST_PAUSE_S

    def next_pause() -> float:
        nonlocal pause, last
        now = time.monotonic()
        keeps_ending = now - last < _LONGEST_PAUSE_S
        pause = min(2 * pause, _LONGEST_PAUSE_S) if keeps_ending else _FIRST_PAUSE_S
        last = now + pause
        return pause

    return next_pause


class Group:
    """Parts that run, of which one is not lost alone.

    An engine's stages wait for each other, on their devices, where nothing interrupts them: if one
    is lost, all are killed and started again. The holders of their weights live on, unless one of
    these is lost: stages map their memory. All of an engine whose core is lost is started again.
    API processes, and the batch process, are groups of one.

    A stage on a GPU has a spare: a process that has imported what it needs, which takes seconds,
    and waits. It has nothing on the GPU.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        pause: Pause,
        *,
        nodes: Sequence[Supervised] = (),
        files: Sequence[ModelFiles] = (),
        spares: bool = False,
    ) -> None:
        """Start all `parts`, later with `spares` of them. What the others that are started again
        read must be `files`, as they are. Raises OSError."""
        self.role, self.model = parts[0].role, parts[0].model
        self.name = parts[0].group
        self.pause = pause
        self._files, self._nodes = files, nodes
        self._restarts, self._why = 0, ""
        self._spared = [part for part in parts if spares and part.spared]
        self.spares: dict[str, RunningPart] = {}
        """By the titles of the parts, and some may have ended."""
        with _hangup_blocked():
            self.processes = [RunningPart(part) for part in parts]

    @property
    def children(self) -> list[Supervised]:
        return [*self.processes, *self._nodes]

    @property
    def core_is_lost(self) -> bool:
        return any(each.part.role == "engine" and each.exit.done() for each in self.processes)

    async def loss(self) -> None:
        """Wait until a part has ended. To be called when they have started."""
        ends = [child.exit for child in self.children]
        later = _SPARE_AFTER_S if self._spared else None
        done, _ = await asyncio.wait(ends, timeout=later, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self._add_spares()
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    def ended(self) -> list[Supervised]:
        return [child for child in self.children if child.exit.done()]

    @property
    def was_killed(self) -> bool:
        return any(child.exit.result() < 0 for child in self.ended())

    def cause(self) -> str:
        """Why a part has ended."""
        return self._why or f"the {cause_of(self.ended())}"

    def again(self) -> str:
        """Name what is to be started again."""
        if self.model is None:
            return "it"
        return f"the engine of {self.name}" if self.core_is_lost else f"all stages of {self.name}"

    def watch(self, limits: Mapping[Role, float]) -> None:
        """Kill parts that are silent or stand still. To be called every BEAT_SECONDS.

        Silent is who was so for as many calls as the limit of its role. Stages may stand still that
        the core calls lost."""
        for process in self.processes:
            if process.exit.done():
                continue
            if process.silent_beats() >= limits.get(process.part.role, math.inf):
                process.kill_stalled()
            for line in process.said():
                self._on_loss(*line.split(" ", 1))

    def _on_loss(self, restarts: str, why: str) -> None:
        if int(restarts) == self._restarts and not self.ended():
            self._why = why
            self._kill(self._stages())

    async def start_again(self) -> None:
        """Kill what is left of what was lost, and start it anew. Raises OSError, and NoRestartError
        if a process does not end, or its files are others now."""
        lost = self._lost()
        self._kill(lost)
        await asyncio.wait([process.exit for process in lost], timeout=_END_S)
        if left := [process.part.title for process in lost if not process.exit.done()]:
            raise NoRestartError(f"the {left[0]} has not ended {_END_S:g} s after SIGKILL")
        try:
            for files in self._files:
                await in_thread(files.check)
        except ModelFilesError as error:
            raise NoRestartError(str(error)) from None
        self._restarts += 1
        with _hangup_blocked():
            self.processes = [
                self._started_again(each.part) if each in lost else each for each in self.processes
            ]
        self._why = ""

    def _started_again(self, part: Part) -> RunningPart:
        spare = self.spares.pop(part.title, None)
        if spare is not None and spare.take_place(self._restarts):
            return spare
        return RunningPart(part, self._restarts)

    def _add_spares(self) -> None:
        """Of parts that have none. Without memory for one there is none."""
        for part in self._spared:
            if part.title not in self.spares or self.spares[part.title].exit.done():
                with suppress(OSError), _hangup_blocked():
                    self.spares[part.title] = RunningPart(part, "spare")

    async def end(self, grace: float = _GRACE_S) -> None:
        """End what is left: a core first has a moment to answer its clients."""
        cores = [process.exit for process in self.processes if process.part.role == "engine"]
        if cores:
            await asyncio.wait(cores, timeout=grace)
        self._kill([*self.children, *self.spares.values()])

    async def stop(self) -> None:
        """End it by SIGTERM, after which what it was doing can go on. Idempotent."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        exits = [process.exit for process in self.processes]
        await asyncio.wait(exits, timeout=_GRACE_S)
        self._kill(self.processes)
        await asyncio.wait(exits)

    def _lost(self) -> list[RunningPart]:
        """All that must be started again because of those that have ended."""
        if self.core_is_lost:
            return self.processes
        if any(each.part.role == "holder" for each in self.ended()):
            return [each for each in self.processes if each.part.role != "engine"]
        return self._stages()

    def _stages(self) -> list[RunningPart]:
        """All but the core, and the holders of weights."""
        others: set[Role] = {"engine", "holder"}
        return [process for process in self.processes if process.part.role not in others]

    def _kill(self, children: Sequence[Supervised]) -> None:
        for child in children:
            child.signal(signal.SIGKILL)


@contextmanager
def _hangup_blocked() -> Generator[None]:
    """For children, which inherit it: SIGHUP would end one that does not handle it yet. API
    processes unblock it when they do."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
