"""A client's job inside the core, and the error that refuses or fails one."""

import sys
from dataclasses import dataclass, field
from typing import TypeVar

from engine_core.job_timing import JobMoments
from engine_core.messages import EncodeJob, FailureCode, GenerateJob

JobKey = tuple[bytes, int]
ErrorT = TypeVar("ErrorT", bound=Exception)


class RefusalError(Exception):
    """Why a job is refused or fails: becomes its `Failed` message.

    `param` names the field at fault; `retry_after` is the expected wait in seconds.
    """

    def __init__(
        self,
        code: FailureCode,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


def without_frames(error: ErrorT) -> ErrorT:
    """Return `error`, which leads to no frame any more, for whoever keeps it.

    Its traceback, and that of what it was raised beside, lead to the keeper: a cycle, and all that
    these frames hold would wait for the garbage collector.
    """
    error.__context__ = None
    return error.with_traceback(None)


@dataclass(slots=True, eq=False)
class Job:
    """One admitted job of one client. `cost` is how many tokens it may take; it has `ended` once
    its terminal message is sent, or its client has aborted it. At most `share` of its rows are made
    and counted at a time; `counted_*` are what the budget holds for it."""

    client: bytes
    message: GenerateJob | EncodeJob
    num_rows: int
    cost: int
    share: int = sys.maxsize
    open_rows: int = field(init=False)
    counted_rows: int = 0
    counted_tokens: int = 0
    ended: bool = False
    moments: JobMoments = field(default_factory=JobMoments)

    def __post_init__(self) -> None:
        self.open_rows = self.num_rows

    @property
    def is_batch(self) -> bool:
        """Its rows are of the batch band."""
        return self.message.batch

    @property
    def key(self) -> JobKey:
        """Unique in the core: client ids are unique only within a client."""
        return (self.client, self.message.id)
