"""How much one request, and one API key, may take from all others.

Rows of a job beyond its share of the slots, or beyond that of its key, are *surplus*: they wait
behind all others and give way to them, and run whenever nobody else wants their slots. Shares of
keys are those of weighted max-min fairness among the keys that have rows now, or had some a moment
ago (Demers, Keshav and Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", 1989, with
slots for bandwidth).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from engine_core.loop.jobs import Job, JobKey, JobKind
from engine_core.messages import KeyShare
from engine_core.schedulers.request import Request
from engine_core.schedulers.short_steps import REMEMBERED

_JOBS_AT_LEAST = 8
"""So many jobs can have all slots, if each has enough rows."""


@dataclass(slots=True, eq=False)
class _KeyRows:
    """What an API key has: its number, its weight among keys, rows that are not surplus, jobs, and
    those of them that have surplus rows, the oldest first."""

    number: int
    weight: float = 0.0
    regular: int = 0
    jobs: int = 0
    lacking: "dict[_JobRows, None]" = field(default_factory=dict["_JobRows", None])


@dataclass(slots=True, eq=False)
class _JobRows:
    """The rows of a job: those not made yet, those that are open, and which of these are surplus,
    in order."""

    job: Job
    key: _KeyRows
    unmade: Iterator[Request]
    open: dict[int, Request] = field(default_factory=dict[int, Request])
    surplus: dict[Request, None] = field(default_factory=dict[Request, None])

    @property
    def regular(self) -> int:
        """How many open rows of a client's job are not surplus."""
        return len(self.open) - len(self.surplus)


class RowShares:
    """The rows of all jobs of a decoder. Of one job at most `Job.share` exist at a time: others are
    made as these end."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        """`clock` is in seconds."""
        self._slots, self._clock = slots, clock
        self._of_a_job = max(1, slots // _JOBS_AT_LEAST)
        self._jobs: dict[JobKey, _JobRows] = {}
        self._keys: dict[int, _KeyRows] = {}
        # Keys whose last job has ended, and when: their rows would find others in their places.
        self._absent: dict[_KeyRows, float] = {}
        self._weights = 0.0  # of all these
        self.num_jobs = [0] * len(JobKind)
        """Jobs with open rows, of each kind."""

    def open(self, job: Job, rows: Iterable[Request]) -> list[Request]:
        """The first rows of a new job, of which those beyond a share are surplus."""
        key = self._key_rows(job.message.key)
        key.jobs += 1
        state = self._jobs[job.key] = _JobRows(job, key, iter(rows))
        self.num_jobs[job.kind] += 1
        made: list[Request] = []
        while len(made) < job.share and (request := self._make(job, state)) is not None:
            made.append(request)
        return made

    def find(self, job: JobKey, row: int) -> Request | None:
        """An open row."""
        state = self._jobs.get(job)
        return None if state is None else state.open.get(row)

    def close(self, job: Job) -> list[Request]:
        """The job has ended. Returns its open rows, of which nothing is known from now on."""
        state = self._jobs.pop(job.key, None)
        if state is None:
            return []
        if not job.is_batch:
            state.key.regular -= state.regular
        self._left(state)
        return list(state.open.values())

    def ended(self, request: Request) -> tuple[Request | None, Request | None]:
        """A row has ended. Returns one that is not surplus any more, and one that is new."""
        job = request.job
        state = self._jobs.get(job.key)
        if state is None:
            return None, None
        del state.open[request.row]
        promoted = None
        if request in state.surplus:
            self._take(state, request)
        elif not job.is_batch:
            state.key.regular -= 1
            promoted = self._promote(state)
        made = self._make(job, state)
        if not state.open:
            del self._jobs[job.key]
            self._left(state)
        return promoted, made

    def _make(self, job: Job, state: _JobRows) -> Request | None:
        request = next(state.unmade, None)
        if request is None:
            return None
        if not job.is_batch:
            if self._has_room(state):
                state.key.regular += 1
            else:
                self._turn(job, JobKind.LARGE)
                request.kind = JobKind.LARGE
                state.surplus[request] = state.key.lacking[state] = None
        state.open[request.row] = request
        return request

    def _key_rows(self, share: KeyShare) -> _KeyRows:
        key = self._keys.get(share.number)
        if key is None:
            key = self._keys[share.number] = _KeyRows(share.number)
        self._absent.pop(key, None)
        self._weights += share.weight - key.weight
        key.weight = share.weight
        return key

    def _has_room(self, state: _JobRows) -> bool:
        if state.regular >= self._of_a_job:
            return False
        if not state.key.number:
            return True
        self._forget_keys()
        # As if one more key were there: the next one that comes finds slots.
        share = self._slots * state.key.weight / (self._weights + 1)
        return state.key.regular < max(1, int(share))

    def _promote(self, state: _JobRows) -> Request | None:
        """A row is not surplus any more: of this job if it has one, else of another of the key."""
        lacking = state.key.lacking
        first = (state,) if state in lacking else ()
        # Without keys no job makes room for another.
        for candidate in chain(first, lacking if state.key.number else ()):
            if self._has_room(candidate):
                request = next(iter(candidate.surplus))
                self._take(candidate, request)
                candidate.key.regular += 1
                return request
        return None

    def _take(self, state: _JobRows, request: Request) -> None:
        """It is among the surplus rows no more."""
        del state.surplus[request]
        if not state.surplus:
            del state.key.lacking[state]
            self._turn(state.job, JobKind.SMALL)

    def _turn(self, job: Job, kind: JobKind) -> None:
        """Whoever has surplus rows is a large job."""
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
        """Those that left too long ago have no share any more."""
        limit = self._clock() - REMEMBERED
        while self._absent:
            key, left = next(iter(self._absent.items()))
            if left > limit:
                return
            self._weights -= key.weight
            del self._absent[key], self._keys[key.number]
