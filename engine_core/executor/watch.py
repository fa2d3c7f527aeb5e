"""Which stage stands still: idle and without heartbeats, or for too long at one step."""

import math

from engine_core.executor.base import CHECK_SECONDS, CHECKS_A_BEAT, WorkerLostError
from workers.contract.config import ExecutionConfig
from workers.contract.messages import WorkerBeat
from workers.contract.process import BEAT_SECONDS, SILENT_BEATS

_SILENT_TICKS = SILENT_BEATS * CHECKS_A_BEAT


class StageWatch:
    """Counts calls of `tick`, not seconds of a clock: the time for which this process was itself
    stopped, perhaps with the whole machine, does not count as any stage's silence."""

    def __init__(self, execution: ExecutionConfig, stall_timeout: float) -> None:
        """A step may take `stall_timeout` seconds; with 0 nothing is watched."""
        num_stages = execution.num_stages
        self._name = execution.name
        self._setting = execution.setting("stall_timeout")
        self._stall_timeout = stall_timeout
        self._stall_ticks = math.ceil(stall_timeout / CHECK_SECONDS)
        self._silent = [0] * num_stages  # ticks since the last heartbeat
        self._last_steps = [-1] * num_stages  # the last step each has done its share of
        self._oldest: int | None = None
        self._age = 0  # ticks for which `_oldest` has been the same

    def heard(self, beat: WorkerBeat) -> None:
        """A heartbeat has come."""
        self._silent[beat.stage] = 0
        self._last_steps[beat.stage] = beat.last_finished_step

    def tick(self, oldest: int | None) -> None:
        """Called every CHECK_SECONDS with the oldest step in flight.

        Raises WorkerLostError, naming the stage that stands still. While a step is in flight
        silence means nothing: a stage may be busy, or in a debugger.
        """
        if not self._stall_timeout:
            return
        self._age = self._age + 1 if oldest == self._oldest else 0
        self._oldest = oldest
        self._silent = [count + 1 for count in self._silent]
        if oldest is None:
            self._check_idle()
        else:
            self._check_step(oldest)

    def _check_idle(self) -> None:
        most = max(self._silent)
        if self._age >= _SILENT_TICKS and most > _SILENT_TICKS:
            why = f"no heartbeat for {SILENT_BEATS * BEAT_SECONDS:g} s"
            raise WorkerLostError(self._stands_still(self._silent.index(most), why))

    def _check_step(self, oldest: int) -> None:
        if self._age >= self._stall_ticks:
            why = f"step {oldest} has not ended in {self._stall_timeout:g} s ({self._setting})"
            raise WorkerLostError(self._stands_still(self._culprit(oldest), why))

    def _culprit(self, oldest: int) -> int:
        """The stage that stands still at step `oldest`.

        That is the stage that has been silent since the step became the oldest. If none has, it is
        the first stage that has not launched its part of the step. If all have, it is the last
        stage, whose device has not computed the result.
        """
        most = max(self._silent)
        if most >= max(self._age, 2 * CHECKS_A_BEAT):  # one that beats has half of that
            return self._silent.index(most)
        behind = [stage for stage, step in enumerate(self._last_steps) if step < oldest]
        return behind[0] if behind else len(self._last_steps) - 1

    def _stands_still(self, stage: int, why: str) -> str:
        return f"worker {stage} of {self._name} stands still: {why}"
