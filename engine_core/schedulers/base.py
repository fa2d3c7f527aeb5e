"""The interface of a scheduler to the loop."""

from collections.abc import Iterable
from typing import Any, Protocol

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import KeyShare, Usage
from workers.contract.messages import StepInput, StepMask


class Scheduler(Protocol):
    """Owns every admitted row from `add` until its end.

    Its batches are the rows of one step. Features do not belong in `schedule`: a difference between
    workflows is part of the workflow.
    """

    def add(self, job: Job, rows: Any) -> None:
        """Queue the rows of a job, as its workflow prepares them."""
        ...

    def usage(self) -> Usage: ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait to be computed."""
        ...

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        """Queued tokens that come before a new job of `priority` and `key`. None: as if all jobs
        were of one key."""
        ...

    def abort(self, job: Job, row: int | None = None) -> int:
        """End a job's open rows, or one of them, silently. Returns how many were open.

        Their slots and KV blocks are released at once, and results in flight are ignored."""
        ...

    def reset_cache(self) -> None: ...

    def schedule(self, oldest: Any) -> Any:
        """The next step, or None if no row can run now.

        `oldest` is the oldest step in flight, if any. Only its rows may be in the next step before
        their result has come, and none with `steps_ahead` 0."""
        ...

    def depth(self) -> int:
        """The most steps that may be in flight now: 1 to `ExecutionConfig.max_depth`."""
        ...

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step whose work took the slowest stage `seconds` (0: unknown)."""
        ...

    def is_open(self) -> bool:
        """True if a request that arrived now could join the next step."""
        ...

    def has_prompts(self) -> bool: ...

    def build(self, batch: Any) -> StepInput: ...

    def masks(self, outbox: Outbox) -> Iterable[StepMask]:
        """Compute the masks that submitted steps wait for, in the order of their steps. Jobs fail
        if one of their rows has no allowed token."""
        ...

    def update(self, batch: Any, output: Any, outbox: Outbox) -> None:
        """Apply a step's results: advance its rows, end those that are done."""
        ...
