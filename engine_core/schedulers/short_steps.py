"""Short steps: bounds of what batches and large jobs take of a step beside smaller jobs."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import Final

from engine_core.loop.jobs import JobKind
from engine_core.loop.reports import StepWork
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime
from engine_core.schedulers.queues import RunningRequests, WaitingRequests
from engine_core.schedulers.request import Request
from workers.contract.config import ExecutionConfig

STEP_SECONDS = 20e-3
"""The time to which large jobs and batches fill a step beside smaller jobs: a token of those takes
one. Batches lose little: of an 8B model an H100 computes 512 tokens in 12 ms, 1,024 in 24."""

REMEMBERED = 5.0
"""Seconds in which a client that was answered may ask again, and would find a long step running."""

UNLIMITED: Final = len(JobKind)
"""In place of the first kind that is limited."""

_LEAST_SHARE = 32
"""A row in so many of the slots goes on in any step, however long what clients wait for takes."""

_age = attrgetter("last_step")


class OnlineTraffic:
    """Jobs that others give way to: present, or until a moment ago."""

    def __init__(self, present: Sequence[int], clock: Callable[[], float]) -> None:
        """`present` counts what there is of each kind. `clock` is in seconds."""
        self._present, self._clock = present, clock
        self._last = [-math.inf] * len(JobKind)

    @property
    def gives_way(self) -> bool:
        """True if there is anything that gives way."""
        return any(self._present[JobKind.LARGE :])

    def seen(self, kind: JobKind) -> None:
        """Note that a job of this kind has been there until now."""
        self._last[kind] = self._clock()

    def first_limited(self) -> int:
        """The first kind that is present and gives way to one before it, or `UNLIMITED`."""
        if not self.gives_way:
            return UNLIMITED
        since = self._clock() - REMEMBERED
        online = False
        for kind in JobKind:
            present = self._present[kind] > 0
            if present and online:
                return kind
            online = online or present or self._last[kind] > since
        return UNLIMITED


class ShortSteps:
    """Bounds what a step takes of batches and of large jobs while smaller jobs are present.

    A job counts as present until `REMEMBERED` seconds after its last row. Large rows are bound
    wholly, small rows of a large job while their prompts are computed.
    """

    def __init__(
        self,
        config: ExecutionConfig,
        running: RunningRequests,
        waiting: WaitingRequests,
        num_jobs: Sequence[int],
        step_time: StepTime,
        clock: Callable[[], float],
    ) -> None:
        self._running, self._waiting = running, waiting
        self._costs, self._step_time = step_time.cost_model, step_time
        self._least_rows = max(1, config.max_running // _LEAST_SHARE)
        self.traffic = OnlineTraffic(num_jobs, clock)
        self._first_limited: int = UNLIMITED

    @property
    def limited(self) -> bool:
        return self._first_limited != UNLIMITED

    def decide(self) -> None:
        self._first_limited = self.traffic.first_limited()

    def gives_way(self, request: Request) -> bool:
        """True if this step limits the prompt of a request."""
        return request.job.kind >= self._first_limited

    def fit(self, max_tokens: int) -> bool:
        """True if a slot, a KV block and a token remain. Rows that are limited give way."""
        limited, running = self._first_limited, self._running
        slots = len(running.free_slots) + sum(running.rows[limited:])
        return self._waiting.fit(slots, max_tokens - running.tokens_before(limited), limited)

    def split(self, ready: list[Request]) -> tuple[list[Request], list[Request]]:
        """Part generating requests into those that must be in the step, and others. Without a limit
        all are in the second list."""
        if not self.limited:
            return [], ready
        limited = self._first_limited
        first = [request for request in ready if request.kind < limited]
        return first, [request for request in ready if request.kind >= limited]

    def fitting(self, rows: list[Request], first: list[Request], max_tokens: int) -> list[Request]:
        """The limited generating `rows` that waited longest, as many as fit beside the `first` rows
        and the prompts that are not limited."""
        if not self.limited or not rows:
            return rows
        _, token, _, context = self._costs.coefficients
        prompts = sum(self._running.unsubmitted[: self._first_limited])
        prompts += self._waiting.tokens_before(self._first_limited)
        room = max_tokens - len(first)
        prompts = min(prompts, room)
        work = StepWork(len(first), contexts=sum(row.submitted + 1 for row in first))
        seconds = self._costs.chunk_seconds(0, prompts)
        seconds = self._costs.seconds(work) + min(seconds, self._step_time.of(seconds))
        left = STEP_SECONDS - seconds
        rows = sorted(rows, key=_age)
        times = accumulate(token + context * (row.submitted + 1) for row in rows)
        count = min(sum(1 for _ in takewhile(left.__ge__, times)), room - prompts)
        return rows[: max(count, min(self._least_rows, max_tokens // 8), 1)]

    def limit(self, budget: PromptBudget, batch: DecodeBatch, kind: int) -> None:
        """Limit the prompts of one kind of rows, as far as they give way."""
        if self.limited:
            left = STEP_SECONDS - self._costs.seconds(batch.work)
            # Small rows keep their place: one that could not begin would hold up those behind it.
            each = 1 if kind == JobKind.SMALL else 0
            budget.within(left, each)
