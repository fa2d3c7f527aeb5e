"""A client's job inside the core."""

import sys
from dataclasses import dataclass, field

from engine_core.job_timing import JobMoments
from engine_core.messages import EncodeJob, GenerateJob

JobKey = tuple[bytes, int]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixGroup:
    """Rows of the batch class whose prompts begin with the same `prefix_len` tokens. Each has one
    token of its own at least, its own part; with 0 they share nothing."""

    prefix_len: int


def is_of_batch_class(message: GenerateJob | EncodeJob, group: PrefixGroup | None) -> bool:
    """Its rows wait for all others, and are never refused for that: it came with a group, or is to
    be grouped."""
    return group is not None or (isinstance(message, EncodeJob) and message.grouped)


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client. `cost` is how many tokens it may take; it has `ended` once
    its terminal message is sent, or its client has aborted it. At most `share` of its rows are made
    and counted at a time; `counted_*` are what the budget holds for it. The rows of one that came
    with a `group` are in it; those of one that `is_batch` are of the batch class."""

    client: bytes
    message: GenerateJob | EncodeJob
    num_rows: int
    cost: int
    group: PrefixGroup | None = None
    share: int = sys.maxsize
    is_batch: bool = field(init=False)
    open_rows: int = field(init=False)
    counted_rows: int = 0
    counted_tokens: int = 0
    ended: bool = False
    moments: JobMoments = field(default_factory=JobMoments)

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows
        self.is_batch = is_of_batch_class(self.message, self.group)

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)
