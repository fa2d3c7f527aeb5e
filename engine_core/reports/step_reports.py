"""What each stage reports of each step: for the statistics, the scheduler and traces."""

from collections.abc import Callable
from dataclasses import dataclass

from engine_core.reports.statistics import Statistics
from engine_core.reports.tracer import Tracer
from engine_core.schedulers.cost_model import StepWork
from workers.contract.messages import StepInput, StepTimes


@dataclass(slots=True)
class _Submitted:
    """A step that `unreported` stages have yet to report: the others' `times`, by stage.
    `continued`: there was a job ever since the step before it was submitted."""

    step: StepInput
    work: StepWork
    continued: bool
    times: list[StepTimes]
    unreported: int


class StepReports:
    """Keeps each step from its submission until every stage has reported it. That may be after its
    results have come."""

    def __init__(
        self,
        num_stages: int,
        statistics: Statistics,
        tracer: Tracer,
        observe: Callable[[StepWork, float], None],
    ) -> None:
        """`observe` gets each step's work, and the seconds that it took the slowest stage."""
        self._num_stages = num_stages
        self._observe = observe
        self._statistics = statistics
        self._tracer = tracer
        self._steps: dict[int, _Submitted] = {}
        self._drained = True

    def drained(self) -> None:
        """There is no job: until the next step stages have nothing to do, and are not idle."""
        self._drained = True

    def submitted(self, step: StepInput, work: StepWork) -> None:
        """A step has been submitted."""
        continued, self._drained = not self._drained, False
        unknown = [StepTimes()] * self._num_stages
        self._steps[step.step] = _Submitted(step, work, continued, unknown, self._num_stages)
        self._statistics.step_submitted(work.tokens)

    def reported(self, stage: int, number: int, times: StepTimes) -> None:
        """A stage has done its part of step `number`."""
        step = self._steps[number]
        self._statistics.step_reported(stage, times, continued=step.continued)
        step.times[stage] = times
        step.unreported -= 1
        if not step.unreported:
            del self._steps[number]
            self._observe(step.work, max(times.busy_us for times in step.times) / 1e6)
            self._tracer.record(step.step, step.times, continued=step.continued)
