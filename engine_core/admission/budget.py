"""The bound on work in flight: rows and tokens of all jobs that are admitted and not finished.

A job counts an eighth of each bound at most, so that one request leaves room for others however
large it is: its rows beyond that are made when others of it have ended. All large ones together
leave an eighth to small ones. An API key, where there are several, counts half of each at most.
"""

from dataclasses import dataclass

from engine_core.job import Job, PrefixGroup, RefusalError, is_of_batch_class
from engine_core.messages import EncodeJob, GenerateJob

_JOBS_AT_LEAST, _KEYS_AT_LEAST = 8, 2
_SMALL = 64
"""A job is small that counts at most this part."""


@dataclass(slots=True)
class _InFlight:
    rows: int = 0
    tokens: int = 0
    jobs: int = 0


class Budget:
    """Rows and tokens in flight. Text counts its bytes until it has been tokenized."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._all = _InFlight()
        self._keys: dict[int, _InFlight] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing is in flight."""
        return not self._keys and self._all.rows == self._all.tokens == 0

    def admit(
        self, client: bytes, message: GenerateJob | EncodeJob, group: PrefixGroup | None = None
    ) -> Job:
        """Admit a whole job. Raises RefusalError: `too_large` if it could never fit, `overloaded`
        if it does not fit now."""
        rows, sent, cost = _size(message)
        if rows < 1:
            raise RefusalError("invalid_request", "the request has no items")
        if rows > self._max_rows or cost > self._max_tokens:
            raise RefusalError(
                "too_large",
                f"the request has {rows} rows and up to {cost} tokens; this server takes at most "
                f"{self._max_rows} rows and {self._max_tokens} tokens at once",
            )
        if is_of_batch_class(message, group):
            job = Job(client, message, rows, cost, group)
        else:
            share = max(1, self._max_rows // _JOBS_AT_LEAST)
            job = Job(client, message, rows, cost, group, share)
            # What is not tokenized is held as it was sent.
            cost = min(cost, max(sent, self._max_tokens // _JOBS_AT_LEAST))
        self._check(message.key.number, min(rows, job.share), cost)
        self._keys.setdefault(message.key.number, _InFlight()).jobs += 1
        self._count(job, min(rows, job.share), cost)
        return job

    def correct(self, job: Job, tokens: int) -> None:
        """Replace the estimate of a job's tokens by their count."""
        job.cost = tokens
        self.rows_ended(job)

    def rows_ended(self, job: Job) -> None:
        """Some rows of a job are over: it counts what is open."""
        tokens = job.cost * job.open_rows // job.num_rows
        if not job.is_batch:
            tokens = min(tokens, self._max_tokens // _JOBS_AT_LEAST)
        self._count(job, min(job.open_rows, job.share), tokens)

    def release(self, job: Job) -> None:
        """The job has ended: give back its rows and tokens."""
        self._count(job, 0, 0)
        own = self._keys[job.message.key.number]
        own.jobs -= 1
        if not own.jobs:
            del self._keys[job.message.key.number]

    def _check(self, key: int, rows: int, tokens: int) -> None:
        """Raises RefusalError `overloaded` if so much more does not fit now."""
        held, rest = self._all, self._left_to_small(rows, tokens)
        if (
            held.rows + rows + self._max_rows * rest > self._max_rows
            or held.tokens + tokens + self._max_tokens * rest > self._max_tokens
        ):
            raise RefusalError("overloaded", "the server is at capacity; try again later")
        own = self._keys.get(key) if key else None
        if own is not None and (
            (own.rows + rows) * _KEYS_AT_LEAST > self._max_rows
            or (own.tokens + tokens) * _KEYS_AT_LEAST > self._max_tokens
        ):
            reason = "this API key has as much in flight as one may have; try again later"
            raise RefusalError("overloaded", reason)

    def _left_to_small(self, rows: int, tokens: int) -> float:
        """The part that a job of so much leaves to others."""
        large = rows * _SMALL > self._max_rows or tokens * _SMALL > self._max_tokens
        return 1 / _JOBS_AT_LEAST if large and self._all.rows else 0.0

    def _count(self, job: Job, rows: int, tokens: int) -> None:
        """The job counts so much from now on."""
        for held in (self._all, self._keys[job.message.key.number]):
            held.rows += rows - job.counted_rows
            held.tokens += tokens - job.counted_tokens
        job.counted_rows, job.counted_tokens = rows, tokens


def _size(message: GenerateJob | EncodeJob) -> tuple[int, int, int]:
    """(rows, tokens as they were sent, those of all rows), both tokens from above: a token has at
    least one byte, an id has four."""
    text_bytes = sum(len(text.encode()) for text in message.texts)
    tokens = text_bytes + sum(len(ids) // 4 for ids in message.ids)
    items = len(message.texts) + len(message.ids)
    if isinstance(message, GenerateJob):
        return items * message.n, tokens, tokens * message.n
    return items, tokens, tokens + _query_bytes(message.query, items)


def _query_bytes(query: str | list[str] | None, items: int) -> int:
    """A query counts once for every pair that it is part of."""
    if query is None:
        return 0
    if isinstance(query, str):
        return len(query.encode()) * items
    return sum(len(text.encode()) for text in query)
