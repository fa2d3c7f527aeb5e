"""What each stage reports of each step: for the statistics, the scheduler and traces."""

from collections.abc import Callable
from dataclasses import dataclass

from engine_core.schedulers.cost_model import StepWork
from engine_core.statistics import Statistics
from engine_core.tracer import Tracer
from workers.contract.messages import StepInput, StepTimes


@dataclass(slots=True)
class _Submitted:
    """A step that `unreported` stages have yet to report: the others' `times`, by stage.
    `overlapped`: it was submitted while another one was in flight."""

    step: StepInput
    work: StepWork
    overlapped: bool
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

    def submitted(self, step: StepInput, work: StepWork, *, overlapped: bool) -> None:
        """A step has been submitted."""
        unknown = [StepTimes()] * self._num_stages
        self._steps[step.step] = _Submitted(step, work, overlapped, unknown, self._num_stages)
        self._statistics.step_submitted(work.tokens)

    def reported(self, stage: int, number: int, times: StepTimes) -> None:
        """A stage has done its part of step `number`."""
        step = self._steps[number]
        self._statistics.step_reported(stage, times, overlapped=step.overlapped)
        step.times[stage] = times
        step.unreported -= 1
        if not step.unreported:
            del self._steps[number]
            self._observe(step.work, max(times.busy_us for times in step.times) / 1e6)
            self._tracer.record(step.step, step.times, overlapped=step.overlapped)
