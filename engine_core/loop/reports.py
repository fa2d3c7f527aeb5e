"""The counters of an engine core since its start, which its heartbeat reports, and traces."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine_core.loop.admission import InFlight
from engine_core.messages import (
    MAX_TRACE_SECONDS,
    STEP_SIZES,
    Beat,
    StageTime,
    TracedStep,
    TracedSteps,
    Usage,
)
from workers.contract.messages import DecodeStep, StepInput, StepTimes

_MOST_STEPS = 10_000
"""More than any engine runs between two heartbeats, which are a second apart."""


class StepWork(NamedTuple):
    """The work that makes up a step's time.

    tokens    of all rows
    attended  pairs of a prompt token and a token that it attends to
    contexts  tokens that decode rows attend to, over all of them
    """

    tokens: int
    attended: float = 0.0
    contexts: int = 0


class _StageCounter:
    """Sums up one stage's times, in microseconds."""

    def __init__(self) -> None:
        self._busy = self._waiting = self._transfer = self._idle = 0
        self._end: int | None = None

    def add(self, times: StepTimes, *, continued: bool) -> None:
        """Add a step. The time without a step before it was idle if there was a job all that time
        (`continued`)."""
        self._busy += times.busy_us
        self._waiting += times.wait_us
        self._transfer += times.transfer_us
        if continued and self._end is not None:
            self._idle += max(times.start_us - self._end, 0)
        self._end = times.end_us

    def time(self) -> StageTime:
        return StageTime(
            busy_s=self._busy / 1e6,
            waiting_s=self._waiting / 1e6,
            transfer_s=self._transfer / 1e6,
            idle_s=self._idle / 1e6,
        )


@dataclass(slots=True)
class _Submitted:
    """A step that `unreported` stages have yet to report, with the others' `times` by stage.
    `continued`: there was a job ever since the step before it was submitted."""

    step: StepInput
    work: StepWork
    continued: bool
    times: list[StepTimes]
    unreported: int


class Tracer:
    """Keeps what `record` is given until `take` sends it, while there is anybody to send it to."""

    def __init__(self) -> None:
        self._ends: dict[bytes, float] = {}
        self._steps: list[TracedStep] = []

    def start(self, client: bytes, seconds: float, now: float) -> None:
        """Keep the steps of the next `seconds` for a client."""
        self._ends[client] = now + min(max(seconds, 0.0), MAX_TRACE_SECONDS)

    def record(self, step: StepInput, times: Sequence[StepTimes], *, continued: bool) -> None:
        """Keep a step that every stage has reported, with their `times`."""
        if self._ends and len(self._steps) < _MOST_STEPS:
            self._steps.append(_traced(step, times, continued=continued))

    def take(self, now: float) -> Iterator[tuple[bytes, TracedSteps]]:
        """The message for each client, the last one if its time is over."""
        steps, self._steps = self._steps, []
        for client, end in list(self._ends.items()):
            if end <= now:
                del self._ends[client]
            yield client, TracedSteps(steps, over=end <= now)

    def forget(self, client: bytes) -> None:
        self._ends.pop(client, None)


def _traced(step: StepInput, times: Sequence[StepTimes], *, continued: bool) -> TracedStep:
    lens = np.frombuffer(step.query_lens, np.int32)
    tokens = int(lens.sum())
    decode_rows = earlier = 0
    if isinstance(step, DecodeStep):
        sampled = np.frombuffer(step.sample, np.uint8)
        decode_rows = int(((lens == 1) & (sampled > 0)).sum())
        earlier = int(np.frombuffer(step.starts, np.int32).sum())
    return TracedStep(
        step=step.step,
        rows=len(lens),
        tokens=tokens,
        prompt_tokens=tokens - decode_rows,
        context_tokens=earlier + tokens,
        continued=continued,
        times=list(times),
    )


class Statistics:
    """Counters of one engine core, since its start.

    Each step is kept from its submission until every stage has reported it. That may be after its
    results have come.
    """

    def __init__(
        self,
        num_stages: int,
        now: float,
        tracer: Tracer,
        observe: Callable[[StepWork, float], None],
    ) -> None:
        """`observe` gets each step's work, and the seconds that it took the slowest stage."""
        self._tracer, self._observe = tracer, observe
        self._num_steps = self._step_tokens = self._prompt_tokens = 0
        self._step_sizes = [0] * (len(STEP_SIZES) + 1)
        self._stages = [_StageCounter() for _ in range(num_stages)]
        self._steps: dict[int, _Submitted] = {}
        self._drained = True
        self._last_finished = now

    def job_accepted(self, prompt_tokens: int) -> None:
        self._prompt_tokens += prompt_tokens

    def drained(self) -> None:
        """Note that there is no job: until the next step stages are not idle."""
        self._drained = True

    def step_submitted(self, step: StepInput, work: StepWork) -> None:
        continued, self._drained = not self._drained, False
        num_stages = len(self._stages)
        unknown = [StepTimes()] * num_stages
        self._steps[step.step] = _Submitted(step, work, continued, unknown, num_stages)
        self._num_steps += 1
        self._step_tokens += work.tokens
        self._step_sizes[bisect_left(STEP_SIZES, work.tokens)] += 1

    def step_reported(self, stage: int, number: int, times: StepTimes) -> None:
        """Note that a stage has done its part of step `number`."""
        step = self._steps[number]
        self._stages[stage].add(times, continued=step.continued)
        step.times[stage] = times
        step.unreported -= 1
        if not step.unreported:
            del self._steps[number]
            self._observe(step.work, max(times.busy_us for times in step.times) / 1e6)
            self._tracer.record(step.step, step.times, continued=step.continued)

    def step_finished(self, now: float) -> None:
        """Note that the results of a step have come."""
        self._last_finished = now

    def beat(
        self,
        usage: Usage,
        admitted: InFlight,
        now: float,
        *,
        in_flight: Sequence[float],
        expected_wait_s: float,
    ) -> Beat:
        """The heartbeat. `in_flight` are the submission times of those steps, the oldest first."""
        return Beat(
            usage=usage,
            stages=[stage.time() for stage in self._stages],
            expected_wait_s=expected_wait_s,
            stalled_s=now - in_flight[0] if in_flight else 0.0,
            steps=self._num_steps,
            step_tokens=self._step_tokens,
            steps_in_flight=len(in_flight),
            last_step_age_s=now - self._last_finished,
            prompt_tokens=self._prompt_tokens,
            step_sizes=list(self._step_sizes),
            admitted_rows=admitted.rows,
            admitted_tokens=admitted.tokens,
        )
