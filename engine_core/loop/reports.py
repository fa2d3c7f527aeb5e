"""The counters of an engine core since its start, which its heartbeat reports, and traces."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from engine_core.loop.admission import InFlight
from engine_core.loop.host_clock import HostClock
from engine_core.messages import (
    MAX_TRACE_SECONDS,
    STEP_SIZES,
    Beat,
    Loss,
    StageTime,
    TracedStep,
    TracedSteps,
    Usage,
)
from workers.contract.messages import DecodeStep, StepInput, StepTimes

_MOST_STEPS = 10_000  # more than any engine runs between two heartbeats


class StepWork(NamedTuple):
    """The work that makes up a step's time.

    tokens    of all rows
    attended  pairs of a prompt token and a token that it attends to
    contexts  tokens that decode rows attend to, over all of them
    """

    tokens: int
    attended: float = 0.0
    contexts: int = 0


@dataclass(slots=True)
class _Submitted:
    """A step that some stages have yet to report, with the others' `times` by stage.
    `continued`: there was a job ever since the step before it was submitted."""

    step: StepInput
    work: StepWork
    continued: bool
    times: dict[int, StepTimes] = field(default_factory=dict[int, StepTimes])


class Tracer:
    """Keeps what `record` is given until `take` sends it, while there is anybody to send it to."""

    def __init__(self) -> None:
        self._ends: dict[bytes, float] = {}
        self._steps: list[TracedStep] = []

    def start(self, client: bytes, seconds: float, now: float) -> None:
        """Keep the steps of the next `seconds` for a client."""
        self._ends[client] = now + min(max(seconds, 0.0), MAX_TRACE_SECONDS)

    def record(self, step: StepInput, times: Sequence[StepTimes], *, continued: bool) -> None:
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
    """Counters of one engine core. Each step is kept until every stage has reported it: that may be
    after its results have come."""

    def __init__(
        self,
        num_stages: int,
        now: float,
        tracer: Tracer,
        observe: Callable[[StepWork, float], None],
        clocks: Mapping[int, HostClock],
    ) -> None:
        """`observe` gets each step's work, and the seconds that it took the slowest stage. `clocks`
        are of stages on other hosts."""
        self._tracer, self._observe, self._clocks = tracer, observe, clocks
        stages = [StageTime() for _ in range(num_stages)]
        sizes = [0] * (len(STEP_SIZES) + 1)
        self._counted = Beat(usage=Usage(), stages=stages, step_sizes=sizes)
        self._ends: list[int | None] = [None] * num_stages  # of each stage's newest step, µs
        self._steps: dict[int, _Submitted] = {}
        self._drained = True
        self._last_finished = now

    def prompts_accepted(self, prompt_tokens: int) -> None:
        self._counted.prompt_tokens += prompt_tokens

    def drained(self) -> None:
        """Note that there is no job: until the next step stages are not idle."""
        self._drained = True

    def step_submitted(self, step: StepInput, work: StepWork) -> None:
        continued, self._drained = not self._drained, False
        counted = self._counted
        self._steps[step.step] = _Submitted(step, work, continued)
        counted.steps += 1
        counted.step_tokens += work.tokens
        counted.step_sizes[bisect_left(STEP_SIZES, work.tokens)] += 1

    def step_reported(self, stage: int, number: int, times: StepTimes) -> None:
        step = self._steps[number]
        counter, end = self._counted.stages[stage], self._ends[stage]
        counter.busy_s += times.busy_us / 1e6
        counter.waiting_s += times.wait_us / 1e6
        counter.transfer_s += times.transfer_us / 1e6
        # The time without a step before it was idle if there was a job all that time.
        if step.continued and end is not None:
            counter.idle_s += max(times.start_us - end, 0) / 1e6
        self._ends[stage] = times.end_us
        clock = self._clocks.get(stage)
        step.times[stage] = times if clock is None else clock.translated(times)
        if len(step.times) == len(self._ends):
            del self._steps[number]
            by_stage = [step.times[stage] for stage in range(len(self._ends))]
            self._observe(step.work, max(times.busy_us for times in by_stage) / 1e6)
            self._tracer.record(step.step, by_stage, continued=step.continued)

    def step_finished(self, now: float) -> None:
        self._last_finished = now

    def steps_lost(self) -> None:
        """Note that the stages are gone: nothing more is reported of their steps."""
        self._steps.clear()
        self._ends = [None] * len(self._ends)
        self._drained = True

    def beat(
        self,
        usage: Usage,
        admitted: InFlight,
        now: float,
        *,
        in_flight: Sequence[float],
        expected_wait_s: float,
        restarts: int,
        loss: Loss | None,
    ) -> Beat:
        """The heartbeat. `in_flight` are the submission times of those steps, the oldest first."""
        return msgspec.structs.replace(
            self._counted,
            usage=usage,
            expected_wait_s=expected_wait_s,
            stalled_s=now - in_flight[0] if in_flight else 0.0,
            steps_in_flight=len(in_flight),
            last_step_age_s=now - self._last_finished,
            admitted_rows=admitted.rows,
            admitted_tokens=admitted.tokens,
            restarts=restarts,
            loss=loss,
        )
