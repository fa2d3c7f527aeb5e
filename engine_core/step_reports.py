"""What each stage reports of each step: from the loop to the statistics and the scheduler."""

from collections.abc import Callable
from dataclasses import dataclass

from engine_core.schedulers.cost_model import StepWork
from engine_core.statistics import Statistics
from workers.contract.messages import StepTimes


@dataclass(slots=True)
class _Submitted:
    """A step that `unreported` stages have yet to report; the slowest of the others took it
    `slowest_us`. `overlapped`: it was submitted while another one was in flight."""

    work: StepWork
    overlapped: bool
    unreported: int
    slowest_us: int = 0


class StepReports:
    """Keeps each step from its submission until every stage has reported it. That may be after its
    results have come."""

    def __init__(
        self,
        num_stages: int,
        statistics: Statistics,
        observe: Callable[[StepWork, float], None],
    ) -> None:
        """`observe` gets each step's work, and the seconds that it took the slowest stage."""
        self._num_stages = num_stages
        self._observe = observe
        self._statistics = statistics
        self._steps: dict[int, _Submitted] = {}

    def submitted(self, step: int, work: StepWork, *, overlapped: bool) -> None:
        """A step has been submitted."""
        self._steps[step] = _Submitted(work, overlapped, self._num_stages)
        self._statistics.step_submitted(work.tokens)

    def reported(self, stage: int, step: int, times: StepTimes) -> None:
        """A stage has done its part of a step."""
        submitted = self._steps[step]
        self._statistics.step_reported(stage, times, overlapped=submitted.overlapped)
        submitted.unreported -= 1
        submitted.slowest_us = max(submitted.slowest_us, times.busy_us)
        if not submitted.unreported:
            del self._steps[step]
            self._observe(submitted.work, submitted.slowest_us / 1e6)
