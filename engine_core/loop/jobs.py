"""A client's job inside the core."""

import sys
from dataclasses import dataclass, field
from enum import IntEnum

from engine_core.messages import EncodeJob, GenerateJob, JobTiming

JobKey = tuple[bytes, int]


class JobKind(IntEnum):
    """A kind of jobs gives way to those before it. A large job has rows beyond its share of the
    slots, or is more than a short step; a batch's is of the batch band."""

    SMALL = 0
    LARGE = 1
    BATCH = 2


@dataclass(slots=True)
class JobMoments:
    """When a job arrived, was queued and began, by the loop's clock; it is `reported` once."""

    arrived: float = 0.0
    queued: float = 0.0
    begun: float | None = None
    cached: int = 0
    reported: bool = False

    def begin(self, now: float) -> None:
        """A step with a row of the job has been submitted: the first one counts."""
        if self.begun is None:
            self.begun = now

    def report(self, job_id: int, now: float) -> JobTiming:
        """What its client gets, at the first token or with the last row."""
        self.reported = True
        begun = now if self.begun is None else self.begun
        return JobTiming(
            job_id, self.queued - self.arrived, begun - self.queued, now - begun, self.cached
        )


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client. `cost` is how many tokens it may take; it has `ended` once
    its terminal message is sent, or its client has aborted it. At most `share` of its rows are made
    and counted at a time; `counted_*` are what the budget holds for it. Its scheduler says whether
    it is small or large."""

    client: bytes
    message: GenerateJob | EncodeJob
    num_rows: int
    cost: int
    share: int = sys.maxsize
    open_rows: int = field(init=False)
    kind: JobKind = field(init=False)
    counted_rows: int = 0
    counted_tokens: int = 0
    ended: bool = False
    moments: JobMoments = field(default_factory=JobMoments)

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows
        self.kind = JobKind.BATCH if self.message.batch else JobKind.SMALL

    @property
    def is_batch(self) -> bool:
        """Its rows are of the batch band."""
        return self.kind is JobKind.BATCH

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)
