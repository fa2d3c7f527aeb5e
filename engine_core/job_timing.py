"""How long a job took before its first answer: the moments that the loop notes, and the message
that tells its client."""

from dataclasses import dataclass

import msgspec


class JobTiming(msgspec.Struct, array_like=True, frozen=True):
    """Seconds from one moment of a job to the next.

    tokenize  from its arrival until its texts are tokenized and its grammar is compiled
    queue     until a step begins to compute its first row
    prefill   until the first token of a generate job, or the last row of an encode job
    cached    tokens of its prompts that were found in the prefix cache, summed over its rows
    """

    id: int
    tokenize: float
    queue: float
    prefill: float
    cached: int


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
