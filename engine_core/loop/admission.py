"""The bound on work in flight: rows and tokens of all jobs that are admitted and not finished.

A job counts an eighth of each at most, and all large ones together leave an eighth to small ones.
An API key, where there are several, has half of each at most. A job's rows beyond what it may count
are made when others of it have ended.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine_core.loop.jobs import Job
from engine_core.messages import Accepted, GenerateJob, JobMessage, ReadJob
from engine_core.refusal import RefusalError


class JobSize(NamedTuple):
    """Upper bounds of a job: its rows, the tokens `sent`, the `tokens` of all rows."""

    rows: int
    sent: int
    tokens: int


def job_size(message: JobMessage) -> JobSize:
    """Count a job as engines admit it. A token has at least one byte, an id has four."""
    if isinstance(message, ReadJob):
        sizes = [len(piece.encode()) for piece in message.pieces]
        return JobSize(len(message.prompts), sum(sizes), sum(own_sizes(message.prompts, sizes)))
    text_bytes = sum(len(text.encode()) for text in message.texts)
    sent = text_bytes + sum(len(ids) // 4 for ids in message.ids)
    items = len(message.texts) + len(message.ids)
    if isinstance(message, GenerateJob):
        return JobSize(items * message.n, sent, sent * message.n)
    # A query counts for every pair that it is part of.
    query, pairs = message.query or [], 1
    if isinstance(query, str):
        query, pairs = [query], items
    return JobSize(items, sent, sent + pairs * sum(len(text.encode()) for text in query))


def prompt_tokens(message: JobMessage, accepted: Accepted) -> int:
    """Count the tokens of prompts to continue or to read, those that the latter begin with alike
    once."""
    if isinstance(message, ReadJob):
        return sum(own_sizes(message.prompts, accepted.piece_tokens))
    return sum(accepted.prompt_tokens)


def own_sizes(prompts: Sequence[Sequence[int]], sizes: Sequence[int]) -> Iterator[int]:
    """Yield the size of each prompt behind the pieces that an earlier one begins with, too. Piece i
    has `sizes[i]`."""
    beginnings: dict[tuple[int, int], int] = {}  # by what is before a piece, and the piece
    for prompt in prompts:
        before = own = 0
        for piece in prompt:
            if (before, piece) not in beginnings:
                own += sizes[piece]
            before = beginnings.setdefault((before, piece), len(beginnings) + 1)
        yield own


_JOBS_AT_LEAST, _KEYS_AT_LEAST = 8, 2
_SMALL = 64
"""A small job counts at most this part."""


@dataclass(slots=True)
class InFlight:
    """How many jobs there are, and what they count."""

    jobs: int = 0
    rows: int = 0
    tokens: int = 0


class Budget:
    """Rows and tokens in flight. Jobs of the batch band count all that they have."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._rows_of_one = max(1, max_rows // _JOBS_AT_LEAST)
        self._tokens_of_one = max_tokens // _JOBS_AT_LEAST
        self._all = InFlight()
        self._keys: dict[int, InFlight] = {}
        self._changed: set[Job] = set()  # what they count is to be looked at again

    @property
    def held(self) -> InFlight:
        self._count_changed()
        return self._all

    def admit(self, client: bytes, message: JobMessage) -> Job:
        """Admit a whole job. Raises RefusalError: `too_large` for ever, or `overloaded` now."""
        rows, sent, cost = job_size(message)
        if rows < 1:
            raise RefusalError("invalid_request", "the request has no items")
        if rows > self._max_rows or cost > self._max_tokens:
            raise RefusalError(
                "too_large",
                f"the request has {rows} rows and up to {cost} tokens; this server takes at most "
                f"{self._max_rows} rows and {self._max_tokens} tokens at once",
            )
        job, counted = Job(client, message, rows, cost), (rows, cost)
        if not job.is_batch:
            job.share, counted = self._rows_of_one, self._share(rows, cost, sent)
        self._count_changed()
        self._check_room(_key_of(message), *counted)
        self._count(job, *counted, begun=1)
        return job

    def changed(self, job: Job) -> None:
        """Note that a job's cost or its open rows have changed: what it counts follows."""
        self._changed.add(job)

    def release(self, job: Job) -> None:
        self._changed.discard(job)
        self._count(job, 0, 0, begun=-1)

    def _share(self, rows: int, tokens: int, sent: int = 0) -> tuple[int, int]:
        """The part of its rows and tokens that a job counts, `sent` tokens at least."""
        if rows <= self._rows_of_one and tokens <= self._tokens_of_one:
            return rows, tokens
        return min(rows, self._rows_of_one), min(tokens, max(sent, self._tokens_of_one))

    def _check_room(self, key: int, rows: int, tokens: int) -> None:
        """Raises RefusalError `overloaded` if there is no room. A key has room for its first job,
        which would never fit better."""
        large = rows * _SMALL > self._max_rows or tokens * _SMALL > self._max_tokens
        part = 1 - 1 / _JOBS_AT_LEAST if large and self._all.jobs else 1.0
        if not self._is_within(part, self._all, rows, tokens):
            raise RefusalError("overloaded", "the server is at capacity; try again later")
        own = self._keys.get(key)
        if key and own and not self._is_within(1 / _KEYS_AT_LEAST, own, rows, tokens):
            reason = "this API key has as much in flight as one may have; try again later"
            raise RefusalError("overloaded", reason)

    def _is_within(self, part: float, held: InFlight, rows: int, tokens: int) -> bool:
        return (
            held.rows + rows <= self._max_rows * part
            and held.tokens + tokens <= self._max_tokens * part
        )

    def _count_changed(self) -> None:
        # Not with every step: that would cost a third of what a row costs besides.
        for job in self._changed:
            left = job.open_rows, job.cost * job.open_rows // job.num_rows
            self._count(job, *(left if job.is_batch else self._share(*left)))
        self._changed.clear()

    def _count(self, job: Job, rows: int, tokens: int, begun: int = 0) -> None:
        key = _key_of(job.message)
        own = self._keys.setdefault(key, InFlight())
        for held in (self._all, own):
            held.jobs += begun
            held.rows += rows - job.counted_rows
            held.tokens += tokens - job.counted_tokens
        if not own.jobs:
            del self._keys[key]
        job.counted_rows, job.counted_tokens = rows, tokens


def _key_of(message: JobMessage) -> int:
    """The key whose bound a job counts in. Lines of batches count in none: their client keeps to a
    part of the engine."""
    return 0 if message.batch else message.key.number


_WINDOW_WITHOUT_BOUND, _LEAST_WINDOW = 30.0, 1.0  # seconds
_TRUSTED = 0.1
"""The part of the window that is measured first: a burst's first steps may be short or compile."""


class QueueBound:
    """Refuses jobs whose expected wait is too long.

    It follows from the rate at which prompt tokens leave the queue, in steps during which others
    waited. The weight of a step falls to 1/e within `max_seconds` of such steps: about as long as a
    row waits at the end of a full queue.
    """

    def __init__(self, model: str, max_seconds: float) -> None:
        """`max_seconds` bounds the expected wait. 0 refuses nothing."""
        self._model, self._max_seconds = model, max_seconds
        self._window = max(max_seconds or _WINDOW_WITHOUT_BOUND, _LEAST_WINDOW)
        self._tokens = self._seconds = 0.0
        # Steps in flight: when each was submitted, and the prompt tokens that left the queue with
        # it. None if no others kept waiting: then it shows no rate.
        self._steps: deque[tuple[float, int | None]] = deque()
        self._queued = 0  # prompt tokens, after the newest step
        self._last_finish = -math.inf

    def step_submitted(self, now: float, before: int, after: int) -> None:
        """Note a step, with the prompt tokens queued `before` and `after` it was scheduled."""
        self._steps.append((now, before - after if after > 0 or self._queued > 0 else None))
        self._queued = after

    def step_finished(self, now: float) -> None:
        submitted, tokens = self._steps.popleft()
        seconds = now - max(submitted, self._last_finish)
        self._last_finish = now
        if tokens is not None:
            kept = math.exp(-seconds / self._window)
            self._tokens = self._tokens * kept + tokens
            self._seconds = self._seconds * kept + seconds

    def steps_lost(self) -> None:
        """Note that the steps in flight will not finish."""
        self._steps.clear()

    def expected_wait(self, tokens: int, delay: float = 0.0) -> float:
        """Seconds until `tokens` prompt tokens have left the queue, which moves again after
        `delay`. While no rate is known that is all."""
        if self._seconds < _TRUSTED * self._window or self._tokens <= 0:
            return delay
        return delay + tokens * self._seconds / self._tokens

    def admit(self, tokens: int, delay: float = 0.0) -> None:
        """Raises RefusalError `overloaded` if a job behind `tokens` would wait too long."""
        wait = self.expected_wait(tokens, delay)
        if 0 < self._max_seconds < wait:
            raise RefusalError(
                "overloaded",
                f"model {self._model} is overloaded: a request that comes now would wait about "
                f"{wait:.3g} s, more than the {self._max_seconds:g} s that this server allows; "
                "try again later",
                retry_after=wait,
            )
