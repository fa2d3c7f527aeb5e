"""Reports each step to the engine core: a stage's times, and on the last stage the result. At once,
or when the device is done with it."""

import queue
import threading
from dataclasses import dataclass
from typing import NoReturn, Protocol

import msgspec
import torch

from workers.contract.messages import StageReport, StepOutput
from workers.device.event_clock import EventClock
from workers.heads.base import HeadResult
from workers.links.engine_link import EngineLink
from workers.links.token_return import TokenSender
from workers.stage.step_timer import DeviceMarks, DeviceTimer, DeviceTimes, HostTimer, StepTimer


class ResultSender(Protocol):
    """Reports a stage's steps, in order."""

    @property
    def timer(self) -> StepTimer:
        """Takes the marks of each step before it is sent."""
        ...

    def send(self, step: int, result: HeadResult | None) -> None:
        """The stage has done its part of the step; `result` is the last stage's."""
        ...


class ImmediateSender:
    """For results that are there when they are returned: the CPU's."""

    def __init__(self, engine: EngineLink, stage: int, tokens: TokenSender | None = None) -> None:
        self.timer = HostTimer()
        self._engine, self._stage, self._tokens = engine, stage, tokens

    def send(self, step: int, result: HeadResult | None) -> None:
        report = _report(self._stage, step, result)
        if self._tokens is not None and not isinstance(report, StageReport):
            self._tokens.send(report)
        self._engine.send(msgspec.structs.replace(report, times=self.timer.sent()))


@dataclass(frozen=True, slots=True)
class _Queued:
    """A step on the device: its result is in pinned memory when the last mark is reached."""

    step: int
    result: HeadResult | None
    marks: DeviceMarks


class QueuedSender:
    """For results that a CUDA stream has yet to compute: a thread waits for each and sends it, so
    that the launching thread never waits for the device. The device's errors end that thread, and
    so the process."""

    def __init__(
        self,
        engine: EngineLink,
        stage: int,
        device: torch.device,
        tokens: TokenSender | None = None,
    ) -> None:
        """`engine` and `tokens` are links of the thread's own."""
        self.timer = DeviceTimer()
        self._engine, self._stage, self._tokens = engine, stage, tokens
        self._device = device
        self._queue: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="results", daemon=True).start()

    def send(self, step: int, result: HeadResult | None) -> None:
        on_host = None if result is None else result.to_host()
        self._queue.put(_Queued(step, on_host, self.timer.sent()))

    def _run(self) -> NoReturn:
        times = DeviceTimes(EventClock())
        # A thread's current device is the first GPU, unless it says otherwise.
        torch.cuda.set_device(self._device)
        while True:
            queued = self._queue.get()
            of_step = times.wait(queued.marks)
            report = _report(self._stage, queued.step, queued.result)
            if self._tokens is not None and not isinstance(report, StageReport):
                self._tokens.send(report)
            self._engine.send(msgspec.structs.replace(report, times=of_step))


def _report(stage: int, step: int, result: HeadResult | None) -> StepOutput | StageReport:
    """The message, of a result on the host, without times."""
    return StageReport(stage, step) if result is None else result.to_output(step)
