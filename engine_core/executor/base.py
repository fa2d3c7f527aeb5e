"""The loop's interface to the stages: an executor submits steps to them and takes their results.

It computes nothing itself: the workers do.
"""

from dataclasses import dataclass
from typing import NoReturn, Protocol

from engine_core.transport import Pollable
from workers.contract.messages import StepInput, StepMask, StepOutput


class WorkerLostError(Exception):
    """A stage has failed or its process is gone; nothing more can be computed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All stages together: weights in bytes, blocks of KV cache (0 for an encoder)."""

    weight_bytes: int
    num_blocks: int


class Executor(Protocol):
    """Sends every step to every stage; results come back from the last one, in submit order.

    Every method raises WorkerLostError once a stage is lost; a stage that stands still is lost.
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
        """Hand one step to all stages; never blocks."""
        ...

    def submit_mask(self, mask: StepMask) -> None:
        """Hand the mask of a submitted step to the last stage; never blocks."""
        ...

    def poll(self) -> StepOutput | None:
        """The next finished step, or None."""
        ...

    def check(self, oldest: int | None) -> None:
        """Called every BEAT_SECONDS with the number of the oldest step in flight: see that no stage
        stands still."""
        ...

    def raise_lost(self) -> NoReturn:
        """`losses` became readable: say why, as WorkerLostError."""
        ...
