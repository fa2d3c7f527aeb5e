"""What an engine core has done since its start, as its heartbeat reports it."""

from engine_core.engine_state import Beat, Usage
from workers.contract.messages import StepTimes


class Statistics:
    """Counters of one engine core, since its start."""

    def __init__(self, num_stages: int) -> None:
        self._steps = self._prompt_tokens = self._busy_us = self._idle_us = 0
        self._last_stage = num_stages - 1

    def job_accepted(self, prompt_tokens: int) -> None:
        """A job was accepted."""
        self._prompt_tokens += prompt_tokens

    def step_submitted(self) -> None:
        """A step was submitted."""
        self._steps += 1

    def step_reported(self, stage: int, times: StepTimes, *, overlapped: bool) -> None:
        """A stage has done its part of a step. The time for which it had nothing to do before
        counts as idle if the step was submitted while another one was in flight (`overlapped`):
        otherwise the engine had nothing to do."""
        if stage == self._last_stage:
            self._busy_us += times.busy_us
            self._idle_us += max(times.idle_us, 0) if overlapped else 0

    def beat(self, usage: Usage, *, stalled_s: float, expected_wait_s: float) -> Beat:
        """The heartbeat: these counters beside the scheduler's."""
        return Beat(
            usage=usage,
            expected_wait_s=expected_wait_s,
            stalled_s=stalled_s,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            busy_s=self._busy_us / 1e6,
            idle_s=self._idle_us / 1e6,
        )
