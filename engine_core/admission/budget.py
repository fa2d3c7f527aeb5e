"""The bound on work in flight: rows and tokens of all jobs that are admitted and not finished.

A job's rows beyond what it may count are made when others of it have ended.
"""

from engine_core.admission.job_size import job_size
from engine_core.admission.shared_bound import InFlight, SharedBound
from engine_core.job import Job
from engine_core.messages import EncodeJob, GenerateJob
from engine_core.refusal import RefusalError


class Budget:
    """Rows and tokens in flight. Text counts its bytes until it has been tokenized. Jobs of the
    batch band count all that they have."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._bound = SharedBound(max_rows, max_tokens)
        self._changed: set[Job] = set()  # what they count is to be looked at again

    @property
    def held(self) -> InFlight:
        """All that is in flight."""
        self._count_changed()
        return self._bound.all

    def admit(self, client: bytes, message: GenerateJob | EncodeJob) -> Job:
        """Admit a whole job. Raises RefusalError: `too_large` if it could never fit, `overloaded`
        if it does not fit now."""
        bound, key = self._bound, _key_of(message)
        rows, sent, cost = job_size(message)
        if rows < 1:
            raise RefusalError("invalid_request", "the request has no items")
        if rows > bound.max_rows or cost > bound.max_tokens:
            raise RefusalError(
                "too_large",
                f"the request has {rows} rows and up to {cost} tokens; this server takes at most "
                f"{bound.max_rows} rows and {bound.max_tokens} tokens at once",
            )
        job, counted = Job(client, message, rows, cost), (rows, cost)
        if not job.is_batch:
            job.share, counted = bound.rows_of_one, bound.share(rows, cost, sent)
        self._count_changed()
        if not bound.fits(*counted):
            raise RefusalError("overloaded", "the server is at capacity; try again later")
        if key and not bound.fits_key(key, *counted):
            reason = "this API key has as much in flight as one may have; try again later"
            raise RefusalError("overloaded", reason)
        self._count(job, *counted, begun=1)
        return job

    def correct(self, job: Job, tokens: int) -> None:
        """Replace the estimate of a job's tokens by their count."""
        job.cost = tokens
        self._changed.add(job)

    def rows_ended(self, job: Job) -> None:
        """Some rows of a job are over: it counts what is open, from the next admission on."""
        self._changed.add(job)

    def release(self, job: Job) -> None:
        """The job has ended: give back its rows and tokens."""
        self._changed.discard(job)
        self._count(job, 0, 0, begun=-1)

    def _count_changed(self) -> None:
        # Not with every step: that would cost a third of what a row costs besides.
        for job in self._changed:
            left = job.open_rows, job.cost * job.open_rows // job.num_rows
            self._count(job, *(left if job.is_batch else self._bound.share(*left)))
        self._changed.clear()

    def _count(self, job: Job, rows: int, tokens: int, begun: int = 0) -> None:
        """The job counts so much from now on."""
        more = rows - job.counted_rows, tokens - job.counted_tokens
        self._bound.move(_key_of(job.message), begun, *more)
        job.counted_rows, job.counted_tokens = rows, tokens


def _key_of(message: GenerateJob | EncodeJob) -> int:
    """The key whose bound a job counts in. Lines of batches are in none: their client keeps to a
    part of the engine, of which the key's other requests shall have theirs."""
    return 0 if message.batch else message.key.number
