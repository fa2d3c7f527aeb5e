"""Runs one stage's share of each step in order, and reports its times and any result."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec
import torch

from workers.contract.messages import (
    DecodeStep,
    StageReport,
    StepInput,
    StepOutput,
    StepTimes,
)
from workers.device.event_clock import COMPARE_EVERY_S, EventClock
from workers.heads.base import HeadResult
from workers.layers.linear import pad_rows
from workers.links.engine_link import EngineLink, StepInbox, TokenReceiver, TokenSender
from workers.links.transport import Links
from workers.stage.model_runner import ModelRunner, num_tokens


class Stage:
    """A stage that is ready. Heartbeats report its newest finished step, -1 before the first."""

    def __init__(
        self,
        runner: ModelRunner[Any, Any],
        links: Links,
        results: "ResultSender",
        inbox: StepInbox,
        tokens: TokenReceiver | None = None,
    ) -> None:
        """Masks come from `inbox`. `tokens` is for a first stage that shares no memory with the
        last."""
        self.last_finished_step = -1
        self._runner = runner
        self._links = links
        self._results = results
        self._inbox, self._tokens = inbox, tokens

    def run(self, message: StepInput) -> None:
        """Run one step, or queue it on the device, and report it."""
        prepared = self._runner.prepare(message)
        moment = self._results.moment
        marks = [moment()]
        if isinstance(message, DecodeStep):
            self._receive_tokens(message)
        hidden = self._receive(message)
        marks.append(moment())
        hidden = self._runner.forward(prepared, hidden)
        result = None
        if self._links.next is None:
            mask_bits = partial(self._receive_mask, message.step, marks)
            result = self._runner.run_head(prepared, hidden, mask_bits)
            if self._links.tokens is not None:
                self._links.tokens.announce(message.step)
            marks.append(moment())
        else:
            marks.append(moment())
            reused = self._runner.reuses_states(prepared)
            self._links.next.send(message.step, hidden[: num_tokens(message)], reused=reused)
        self._results.send(message.step, result, marks)
        self.last_finished_step = message.step

    def _receive_tokens(self, message: DecodeStep) -> None:
        """Wait for the sampled tokens with which rows of the first stage go on."""
        if self._tokens is not None:
            self._tokens.prepare(message)
        elif self._links.tokens is not None and self._runner.first:
            self._links.tokens.wait_for(message.after)

    def _receive(self, message: StepInput) -> torch.Tensor | None:
        previous = self._links.previous
        if previous is None:
            return None
        return pad_rows(previous.receive(message.step, num_tokens(message)))

    def _receive_mask(self, step: int, marks: list[Any]) -> bytes:
        """The tokens that the grammars of masked rows allow, computed while the layers run."""
        marks.append(self._results.moment())
        mask = self._inbox.take_mask(step)
        marks.append(self._results.moment())
        return mask.bits


def step_times(marks: Sequence[float], lead: float = 0.0, idle_us: int = -1) -> StepTimes:
    """The times of a step from its marks in microseconds, of a clock that the host's leads.

    Each mark is where the work before it ends. In order: the step begins; its input has arrived; a
    wait for a mask begins and ends, amid the computations. Then the results are computed, and sent
    on.
    """
    begun, arrived, *pauses, computed, sent = marks
    paused = sum(pauses[1::2]) - sum(pauses[::2])
    return StepTimes(
        start_us=round(begun + lead),
        idle_us=idle_us,
        wait_us=round(arrived - begun + paused),
        busy_us=round(computed - arrived - paused),
        transfer_us=round(sent - computed),
    )


def recorded_event() -> torch.cuda.Event:
    """A mark in the current CUDA stream, which does not wait for the device."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class DeviceTimes:
    """Times from the events of one step after another. For one thread, which may wait."""

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self._end: float | None = None  # of the step before, on the device's clock

    def wait(self, events: Sequence[torch.cuda.Event]) -> StepTimes:
        """The step's times, once the device has come to the last mark."""
        marks = self._clock.wait(events)
        idle = 0.0 if self._end is None else marks[0] - self._end
        self._end = marks[-1]
        return step_times(marks, self._clock.lead, round(idle))


class ResultSender:
    """Reports a stage's steps to the engine core, in order. Results are complete, as on a CPU."""

    moment: Callable[[], Any] = time.monotonic_ns
    """Makes a mark of a step, by the host's clock or in a device's stream."""

    def __init__(self, engine: EngineLink, stage: int, tokens: TokenSender | None = None) -> None:
        """`tokens` is for a last stage that shares no memory with the first."""
        self._engine, self._stage, self._tokens = engine, stage, tokens

    def send(self, step: int, result: HeadResult | None, marks: Sequence[Any]) -> None:
        report = self._report(step, result)
        times = step_times([mark // 1000 for mark in (*marks, self.moment())])
        self._engine.send(msgspec.structs.replace(report, times=times))

    def _report(self, step: int, result: HeadResult | None) -> StepOutput | StageReport:
        """The message without times, of a result on the host, whose tokens are sent."""
        if result is None:
            return StageReport(self._stage, step)
        output = result.to_output(step)
        if self._tokens is not None:
            self._tokens.send(output)
        return output


class QueuedSender(ResultSender):
    """Sends results that a CUDA stream has yet to compute. A thread waits for each, so that the
    launching thread never does. The device's errors end that thread, and so the process."""

    def __init__(self, engine: EngineLink, stage: int, tokens: TokenSender | None = None) -> None:
        super().__init__(engine, stage, tokens)
        self.moment = recorded_event
        self._device = torch.cuda.current_device()
        # Each step with its result, which is in pinned memory when the last event is reached.
        self._queue: queue.SimpleQueue[tuple[int, HeadResult | None, list[torch.cuda.Event]]]
        self._queue = queue.SimpleQueue()
        threading.Thread(target=self._run, name="results", daemon=True).start()

    def send(self, step: int, result: HeadResult | None, marks: Sequence[torch.cuda.Event]) -> None:
        on_host = None if result is None else result.to_host()
        self._queue.put((step, on_host, [*marks, recorded_event()]))

    def _run(self) -> NoReturn:
        clock = EventClock()
        times = DeviceTimes(clock)
        # A thread's current device is the first GPU, unless it says otherwise.
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(torch.cuda.Stream()):
            clock.compare(recorded_event)
            while True:
                try:
                    step, result, events = self._queue.get(timeout=COMPARE_EVERY_S)
                except queue.Empty:
                    clock.compare(recorded_event)
                    continue
                of_step = times.wait(events)
                report = self._report(step, result)
                self._engine.send(msgspec.structs.replace(report, times=of_step))
