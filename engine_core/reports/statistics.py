"""What an engine core has done since its start, as its heartbeat reports it."""

from bisect import bisect_left
from collections.abc import Sequence

from engine_core.admission.shared_bound import InFlight
from engine_core.engine_state import STEP_SIZES, Beat, StageTime, Usage
from workers.contract.messages import StepTimes


class _StageCounter:
    """Sums up one stage's times, in microseconds."""

    def __init__(self) -> None:
        self._busy = self._waiting = self._transfer = self._idle = 0
        self._end: int | None = None

    def add(self, times: StepTimes, *, continued: bool) -> None:
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


class Statistics:
    """Counters of one engine core, since its start."""

    def __init__(self, num_stages: int, now: float) -> None:
        self._steps = self._step_tokens = self._prompt_tokens = 0
        self._step_sizes = [0] * (len(STEP_SIZES) + 1)
        self._stages = [_StageCounter() for _ in range(num_stages)]
        self._last_finished = now

    def job_accepted(self, prompt_tokens: int) -> None:
        """A job was accepted."""
        self._prompt_tokens += prompt_tokens

    def step_submitted(self, tokens: int) -> None:
        """A step was submitted."""
        self._steps += 1
        self._step_tokens += tokens
        self._step_sizes[bisect_left(STEP_SIZES, tokens)] += 1

    def step_reported(self, stage: int, times: StepTimes, *, continued: bool) -> None:
        """A stage has done its part of a step. The time for which it had no step before counts as
        idle if there was a job all that time (`continued`): otherwise the engine had nothing to
        do."""
        self._stages[stage].add(times, continued=continued)

    def step_finished(self, now: float) -> None:
        """The results of a step have come."""
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
        """The heartbeat: these counters beside the scheduler's, and what has been `admitted`. The
        steps `in_flight` are given by when each was submitted, the oldest first."""
        return Beat(
            usage=usage,
            stages=[stage.time() for stage in self._stages],
            expected_wait_s=expected_wait_s,
            stalled_s=now - in_flight[0] if in_flight else 0.0,
            steps=self._steps,
            step_tokens=self._step_tokens,
            steps_in_flight=len(in_flight),
            last_step_age_s=now - self._last_finished,
            prompt_tokens=self._prompt_tokens,
            step_sizes=list(self._step_sizes),
            admitted_rows=admitted.rows,
            admitted_tokens=admitted.tokens,
        )
