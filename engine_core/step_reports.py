"""What each stage reports of each step: from the loop to the statistics."""

from dataclasses import dataclass

from engine_core.statistics import Statistics
from workers.contract.messages import StepInput, StepTimes

_TOKEN_BYTES = 4


@dataclass(slots=True)
class _Submitted:
    """A step that `unreported` stages have yet to report. `overlapped`: it was submitted while
    another one was in flight."""

    overlapped: bool
    unreported: int


class StepReports:
    """Keeps each step from its submission until every stage has reported it. That may be after its
    results have come."""

    def __init__(self, num_stages: int, statistics: Statistics) -> None:
        self._num_stages = num_stages
        self._statistics = statistics
        self._steps: dict[int, _Submitted] = {}

    def submitted(self, step: StepInput, *, overlapped: bool) -> None:
        """A step has been submitted."""
        self._steps[step.step] = _Submitted(overlapped, self._num_stages)
        self._statistics.step_submitted(len(step.tokens) // _TOKEN_BYTES)

    def reported(self, stage: int, step: int, times: StepTimes) -> None:
        """A stage has done its part of a step."""
        submitted = self._steps[step]
        self._statistics.step_reported(stage, times, overlapped=submitted.overlapped)
        submitted.unreported -= 1
        if not submitted.unreported:
            del self._steps[step]
