"""The interface of a scheduler to the loop."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import KeyShare, Usage
from workers.contract.messages import StepInput, StepMask

RowsT_contra = TypeVar("RowsT_contra", contravariant=True)
BatchT = TypeVar("BatchT")
OutputT_contra = TypeVar("OutputT_contra", contravariant=True)


class Scheduler(Protocol[RowsT_contra, BatchT, OutputT_contra]):
    """Owns every admitted row from `add` until its end.

    `RowsT_contra` is a job's rows as its workflow prepares them, `BatchT` one step's rows,
    `OutputT_contra` the results of a step. Features do not belong in `schedule`: a difference
    between workflows is part of the workflow.
    """

    def add(self, job: Job, rows: RowsT_contra) -> None:
        """Queue the rows of a prepared job."""
        ...

    def usage(self) -> Usage:
        """The state now, for the metrics."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait to be computed."""
        ...

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        """Those of them that are computed before the first row of a new job of `priority` and
        `key`; None: as if all jobs were of one key."""
        ...

    def abort(self, job: Job, row: int | None = None) -> int:
        """End a job's open rows, or one of them, silently: their slots and KV blocks are released
        at once, and results in flight are ignored. Returns how many rows were open."""
        ...

    def reset_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        ...

    def schedule(self, oldest: BatchT | None) -> BatchT | None:
        """The next step, or None if no row can run now. `oldest` is the oldest step in flight:
        only its rows may be in this step before their result has come, and none with `steps_ahead`
        0."""
        ...

    def depth(self) -> int:
        """The most steps that may be in flight now: 1 to `ExecutionConfig.max_depth`."""
        ...

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work has taken the slowest stage `seconds`; 0 if that is unknown."""
        ...

    def is_open(self) -> bool:
        """Whether a request that arrived now could join the next step."""
        ...

    def has_prompts(self) -> bool:
        """Whether prompts wait for the next step."""
        ...

    def build(self, batch: BatchT) -> StepInput:
        """The message for `batch`, which is submitted now."""
        ...

    def masks(self, outbox: Outbox) -> Iterable[StepMask]:
        """The masks that submitted steps wait for and that can be computed now, in the order of
        their steps. Jobs fail if one of their rows has no allowed token."""
        ...

    def update(self, batch: BatchT, output: OutputT_contra, outbox: Outbox) -> None:
        """Apply a step's results: advance its rows, end those that are done."""
        ...
