"""A client's job inside the core."""

import sys
from dataclasses import dataclass, field
from enum import IntEnum

from engine_core.messages import JobMessage, JobTiming

JobKey = tuple[bytes, int]


class JobKind(IntEnum):
    """The kind of a row or a job, which gives way to the kinds before it.

    LARGE are rows beyond the share of their job or key. So are jobs of more rows than a share, jobs
    with such rows, and jobs of more tokens than a short step."""

    SMALL = 0
    LARGE = 1
    BATCH = 2


@dataclass(slots=True)
class JobMoments:
    """The times at which a job arrived, was queued and began. They are `reported` once.

    `cached` and `found` are as in `JobTiming`, None until a row begins.
    """

    arrived: float = 0.0
    queued: float = 0.0
    begun: float | None = None
    cached: int = 0
    found: int | None = None
    reported: bool = False

    def begin(self, now: float) -> None:
        """Note that a step has a row of the job: the first one counts."""
        if self.begun is None:
            self.begun = now

    def report(self, job_id: int, now: float) -> JobTiming:
        """The message for the client, at the first token or with the last row."""
        self.reported = True
        begun = now if self.begun is None else self.begun
        seconds = self.queued - self.arrived, begun - self.queued, now - begun
        return JobTiming(job_id, *seconds, self.cached, self.found or 0)


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client.

    cost       tokens that it may take
    tokens     prompt tokens that are known
    share      the most of its rows that are made and counted at a time
    counted_*  the part of the budget that it holds
    ended      its terminal message is sent, or its client has aborted it
    kind       small or large by its scheduler
    losses     of stages, with a step of it in flight, since its last update
    """

    client: bytes
    message: JobMessage
    num_rows: int
    cost: int
    share: int = sys.maxsize
    tokens: int = 0
    open_rows: int = field(init=False)
    kind: JobKind = field(init=False)
    counted_rows: int = 0
    counted_tokens: int = 0
    ended: bool = False
    losses: int = 0
    moments: JobMoments = field(default_factory=JobMoments)

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows
        self.kind = JobKind.BATCH if self.message.batch else JobKind.SMALL

    @property
    def is_batch(self) -> bool:
        return self.kind is JobKind.BATCH

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)
