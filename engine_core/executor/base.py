"""The loop's interface to the stages: an executor submits steps to them and takes their results.

It computes nothing itself: the workers do.
"""

from dataclasses import dataclass
from typing import NoReturn, Protocol

from engine_core.loop.transport import Pollable
from workers.contract.messages import StageReport, StepInput, StepMask, StepOutput
from workers.contract.process import BEAT_SECONDS

CHECK_SECONDS = 0.25
"""Seconds between two calls of `Executor.check`: how late a stage that stands still is noticed."""

CHECKS_A_BEAT = round(BEAT_SECONDS / CHECK_SECONDS)


class WorkerLostError(Exception):
    """A stage has failed or its process is gone, so nothing more can be computed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All stages together: weights in bytes, blocks of KV cache (0 for an encoder)."""

    weight_bytes: int
    num_blocks: int


class Executor(Protocol):
    """Sends every step to every stage, and takes what they report. Results come from the last one,
    in submit order. An earlier stage's report may come before the step's result, or after it.

    Every method raises WorkerLostError once a stage is lost. One that stands still is lost, too.
    """

    @property
    def results(self) -> Pollable:
        """Readable when `poll` has something."""
        ...

    @property
    def losses(self) -> Pollable:
        """Readable when a stage is gone."""
        ...

    def submit(self, step: StepInput) -> None:
        """Hand one step to all stages, without blocking."""
        ...

    def submit_mask(self, mask: StepMask) -> None:
        """Hand the mask of a submitted step to the last stage, without blocking."""
        ...

    def poll(self) -> StepOutput | StageReport | None:
        """The next report that has come, or None."""
        ...

    def check(self, oldest: int | None) -> None:
        """See that no stage stands still, every CHECK_SECONDS. `oldest` is the oldest step in
        flight."""
        ...

    def raise_lost(self) -> NoReturn:
        """Raise WorkerLostError with the reason why `losses` became readable."""
        ...
