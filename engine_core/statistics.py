"""What an engine core has done since its start, as its heartbeat reports it."""

from engine_core.engine_state import Beat, Usage
from workers.contract.messages import StepOutput


class Statistics:
    """Counters of one engine core, since its start."""

    def __init__(self) -> None:
        self._steps = self._prompt_tokens = self._busy_us = self._idle_us = 0

    def job_accepted(self, prompt_tokens: int) -> None:
        """A job was accepted."""
        self._prompt_tokens += prompt_tokens

    def step_submitted(self) -> None:
        """A step was submitted."""
        self._steps += 1

    def step_finished(self, output: StepOutput, *, overlapped: bool) -> None:
        """A step has finished. The time for which the last stage waited for it counts as idle if it
        was submitted while another step was in flight (`overlapped`): otherwise the engine had
        nothing to do."""
        self._busy_us += output.busy_us
        self._idle_us += max(output.idle_us, 0) if overlapped else 0

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
