"""What a scheduler is to the loop."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine_core.job import Job
from engine_core.outbox import Outbox
from workers.contract.messages import StepInput, StepMask, StepOutput

RowsT_contra = TypeVar("RowsT_contra", contravariant=True)
BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class Usage:
    """A scheduler's state for the metrics; counters are since start."""

    running: int
    waiting: int
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class Scheduler(Protocol[RowsT_contra, BatchT]):
    """Owns every admitted row from `add` until its end.

    `RowsT_contra` is a job's rows as its workflow prepares them, `BatchT` one step's rows. No
    feature lives in `schedule`: what differs by workflow is in the workflow.
    """

    def add(self, job: Job, rows: RowsT_contra) -> None:
        """Take a prepared job in."""
        ...

    def usage(self) -> Usage:
        """What is in the house now."""
        ...

    def ahead(self, priority: int | None = None) -> int:
        """Prompt tokens that begin before the first row of a job of this priority that came now
        (without one: of the last priority there is). 0 if none wait."""
        ...

    def abort(self, job: Job, row: int | None = None) -> int:
        """End a job's open rows (or one of them) silently; what is in flight is ignored.

        Returns how many were open.
        """
        ...

    def reset_cache(self) -> None:
        """Forget what is kept for later requests, and not in use by those that run."""
        ...

    def schedule(self, oldest: BatchT | None) -> BatchT | None:
        """The next step, or None if nothing could run now. `oldest` is the oldest step in flight:
        only its rows may be submitted ahead of their result."""
        ...

    def is_open(self) -> bool:
        """A request that arrived now could be in the next step, so it is worth waiting for one."""
        ...

    def has_prompts(self) -> bool:
        """Prompts wait for the next step."""
        ...

    def build(self, batch: BatchT) -> StepInput:
        """The message for `batch`, which is submitted now."""
        ...

    def mask(self, outbox: Outbox) -> StepMask | None:
        """The mask that the newest step waits for, once: as soon as nothing more need be known for
        it. Rows that cannot be masked any more fail. No step is scheduled while a mask is owed."""
        ...

    def update(self, batch: BatchT, output: StepOutput, outbox: Outbox) -> None:
        """Take a step's results: advance its rows, end those that are done."""
        ...
