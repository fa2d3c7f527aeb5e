"""Sends the last stage's results to the engine core: at once, or when the device has them."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch

from workers.contract.messages import StepOutput
from workers.heads.base import HeadResult
from workers.links.engine_link import EngineLink
from workers.links.token_return import TokenSender


class ResultSender(Protocol):
    """Takes each step's result, in order, and sends it to the engine core."""

    def begin(self) -> None:
        """The next step is prepared, and about to be computed (or its work queued)."""
        ...

    def end(self, step: int, result: HeadResult, waited: float = 0.0) -> None:
        """Send the step's result. `waited` are seconds since `begin` spent waiting for others."""
        ...


class ImmediateSender:
    """For results that are there when they are returned: the CPU's."""

    def __init__(self, engine: EngineLink, tokens: TokenSender | None = None) -> None:
        self._engine, self._tokens = engine, tokens
        self._started = 0.0

    def begin(self) -> None:
        self._started = time.perf_counter()

    def end(self, step: int, result: HeadResult, waited: float = 0.0) -> None:
        busy = time.perf_counter() - self._started - waited
        output = result.to_output(step)
        if self._tokens is not None:
            self._tokens.send(output)
        self._engine.send(_timed(output, busy))


@dataclass(frozen=True, slots=True)
class _Queued:
    """A step on the device: its result in pinned memory from `finished` on."""

    step: int
    result: HeadResult
    started: torch.cuda.Event
    finished: torch.cuda.Event


class QueuedSender:
    """For results that a CUDA stream has yet to compute: a thread waits for each and sends it, so
    that the launching thread never waits for the device."""

    def __init__(
        self,
        engine: EngineLink,
        on_failure: Callable[[Exception], None],
        device: torch.device,
        tokens: TokenSender | None = None,
    ) -> None:
        """`engine` and `tokens` are links of the thread's own; `on_failure` ends the process."""
        self._engine, self._tokens = engine, tokens
        self._on_failure = on_failure
        self._device = device
        self._queue: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._started = torch.cuda.Event(enable_timing=True)
        threading.Thread(target=self._run, name="results", daemon=True).start()

    def begin(self) -> None:
        self._started = torch.cuda.Event(enable_timing=True)
        self._started.record()

    def end(self, step: int, result: HeadResult, waited: float = 0.0) -> None:
        on_host = result.to_host()
        finished = torch.cuda.Event(enable_timing=True)
        finished.record()
        self._queue.put(_Queued(step, on_host, self._started, finished))

    def _run(self) -> None:
        try:
            # A thread's current device is the first GPU, unless it says otherwise.
            torch.cuda.set_device(self._device)
            before: torch.cuda.Event | None = None
            while True:
                queued = self._queue.get()
                queued.finished.synchronize()
                output = _output(queued, before)
                if self._tokens is not None:
                    self._tokens.send(output)
                self._engine.send(output)
                before = queued.finished
        except Exception as error:  # the device's own errors surface here
            self._on_failure(error)


def _output(queued: _Queued, before: torch.cuda.Event | None) -> StepOutput:
    busy = queued.started.elapsed_time(queued.finished) / 1e3
    idle = before.elapsed_time(queued.started) / 1e3 if before is not None else 0.0
    return _timed(queued.result.to_output(queued.step), busy, idle)


def _timed(output: StepOutput, busy: float, idle: float | None = None) -> StepOutput:
    """The output with its times, given in seconds."""
    return msgspec.structs.replace(
        output,
        busy_us=round(busy * 1e6),
        idle_us=-1 if idle is None else round(idle * 1e6),
    )
