"""The share of the slots that one request, and one API key, has for itself.

Rows beyond the share of their job or key are large: they run when no small row wants their slots.
Keys that have rows, or had some a moment ago, share the slots by weighted max-min fairness. See
Demers, Keshav and Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", 1989.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from engine_core.loop.jobs import Job, JobKind
from engine_core.messages import KeyShare
from engine_core.schedulers.request import Request
from engine_core.schedulers.short_steps import REMEMBERED

_JOBS_AT_LEAST = 8
"""Jobs with enough rows that share all slots."""


@dataclass(slots=True, eq=False)
class _KeyRows:
    """An API key: how many small rows and jobs it has, and the jobs with large rows."""

    number: int
    weight: float = 0.0
    small: int = 0
    jobs: int = 0
    lacking: "dict[_JobRows, None]" = field(default_factory=dict["_JobRows", None])


@dataclass(slots=True, eq=False)
class _JobRows:
    """The rows of a job: those not made yet, the open ones, and the large ones of these."""

    job: Job
    key: _KeyRows
    unmade: Iterator[Request]
    open: dict[int, Request] = field(default_factory=dict[int, Request])
    large: dict[Request, None] = field(default_factory=dict[Request, None])

    @property
    def small(self) -> int:
        return len(self.open) - len(self.large)


class RowShares:
    """The rows of all jobs of a decoder. A job has `Job.share` rows at most: others are made as
    these end."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._slots, self._clock = slots, clock
        self._of_a_job = max(1, slots // _JOBS_AT_LEAST)
        self._jobs: dict[Job, _JobRows] = {}
        self._keys: dict[int, _KeyRows] = {}
        # Keys whose last job has ended, and when: they may come back, and find no slots.
        self._absent: dict[_KeyRows, float] = {}
        self._weights = 0.0  # of all these
        self.num_jobs = [0] * len(JobKind)
        """Jobs with open rows, of each kind."""

    def open(self, job: Job, rows: Iterable[Request]) -> list[Request]:
        """Make the first rows of a new job, or more of one whose next rows have come."""
        if (state := self._jobs.get(job)) is None:
            key = self._key_rows(job.message.key)
            key.jobs += 1
            state = self._jobs[job] = _JobRows(job, key, iter(rows))
            self.num_jobs[job.kind] += 1
        else:
            state.unmade = chain(state.unmade, rows)
        most = min(job.share, job.num_rows) - len(state.open)
        return [made for _ in range(most) if (made := self._make(state)) is not None]

    def find(self, job: Job, row: int) -> Request | None:
        state = self._jobs.get(job)
        return None if state is None else state.open.get(row)

    def close(self, job: Job) -> list[Request]:
        """Forget a job that has ended. Returns its open rows."""
        state = self._jobs.pop(job, None)
        if state is None:
            return []
        if not job.is_batch:
            state.key.small -= state.small
        self._left(state)
        return list(state.open.values())

    def ended(self, request: Request) -> tuple[Request | None, Request | None]:
        """Note that a row has ended. Returns a large row that is small now, and a new row."""
        job = request.job
        state = self._jobs.get(job)
        if state is None:
            return None, None
        del state.open[request.row]
        promoted = None
        if request.kind is JobKind.LARGE:
            self._take(state, request)
        elif not job.is_batch:
            state.key.small -= 1
            promoted = self._promote(state)
        made = self._make(state)
        if not state.open:
            del self._jobs[job]
            self._left(state)
        return promoted, made

    def _make(self, state: _JobRows) -> Request | None:
        if (request := next(state.unmade, None)) is None:
            return None
        if not state.job.is_batch:
            if self._has_room(state):
                state.key.small += 1
            else:
                self._turn(state.job, JobKind.LARGE)
                request.kind = JobKind.LARGE
                state.large[request] = state.key.lacking[state] = None
        state.open[request.row] = request
        return request

    def _key_rows(self, share: KeyShare) -> _KeyRows:
        if (key := self._keys.get(share.number)) is None:
            key = self._keys[share.number] = _KeyRows(share.number)
        self._absent.pop(key, None)
        self._weights += share.weight - key.weight
        key.weight = share.weight
        return key

    def _has_room(self, state: _JobRows) -> bool:
        if state.small >= self._of_a_job:
            return False
        if not state.key.number:
            return True
        self._forget_keys()
        # As if one more key were there: the next one that comes finds slots.
        share = self._slots * state.key.weight / (self._weights + 1)
        return state.key.small < max(1, int(share))

    def _promote(self, state: _JobRows) -> Request | None:
        """Find a large row with room to be small: of this job if it has one, else of its key."""
        lacking = state.key.lacking
        first = (state,) if state in lacking else ()
        # Without keys no job makes room for another.
        for candidate in chain(first, lacking if state.key.number else ()):
            if self._has_room(candidate):
                request = next(iter(candidate.large))
                self._take(candidate, request)
                candidate.key.small += 1
                return request
        return None

    def _take(self, state: _JobRows, request: Request) -> None:
        del state.large[request]
        if not state.large:
            del state.key.lacking[state]
            # The last rows of a large job have prompts, as those before them.
            if state.job.num_rows <= self._of_a_job:
                self._turn(state.job, JobKind.SMALL)

    def _turn(self, job: Job, kind: JobKind) -> None:
        self.num_jobs[job.kind] -= 1
        self.num_jobs[kind] += 1
        job.kind = kind

    def _left(self, state: _JobRows) -> None:
        self.num_jobs[state.job.kind] -= 1
        key = state.key
        key.lacking.pop(state, None)
        key.jobs -= 1
        if not key.jobs:
            self._absent[key] = self._clock()

    def _forget_keys(self) -> None:
        limit = self._clock() - REMEMBERED
        while self._absent:
            key, left = next(iter(self._absent.items()))
            if left > limit:
                return
            self._weights -= key.weight
            del self._absent[key], self._keys[key.number]
