"""How much of a step the batch band and large jobs take: beside requests of clients, what fills a
short time."""

from collections.abc import Callable
from itertools import accumulate, takewhile
from operator import attrgetter

from engine_core.loop.jobs import Job, JobKind
from engine_core.loop.reports import StepWork
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import CostModel
from engine_core.schedulers.online_traffic import STEP_SECONDS, UNLIMITED, OnlineTraffic
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime, tile_tokens
from engine_core.schedulers.queues import RequestClasses, RequestQueue
from engine_core.schedulers.request import Request
from engine_core.schedulers.row_shares import RowShares
from engine_core.schedulers.running import RunningRequests
from workers.contract.config import ExecutionConfig

_LEAST_SHARE = 32
"""A row in so many of the slots goes on in any step, however long what clients wait for takes."""

_age = attrgetter("last_step")


class ShortSteps:
    """Limits what steps take of batches while there is a job of a client, or was a moment ago; and
    of large jobs, which have surplus rows, while there is a small one: of their regular rows the
    prompts, of the others all."""

    def __init__(
        self,
        config: ExecutionConfig,
        running: RunningRequests,
        classes: RequestClasses,
        rows: RowShares,
        costs: CostModel,
        step_time: StepTime | None,
        clock: Callable[[], float],
    ) -> None:
        """A single stage has no `step_time`."""
        self._running, self._classes, self._rows = running, classes, rows
        self._costs, self._step_time = costs, step_time
        self._tile = tile_tokens(config)
        self._least_rows = max(1, config.max_running // _LEAST_SHARE)
        self._traffic = OnlineTraffic(lambda kind: rows.num_jobs[kind] > 0, clock)
        self._first_limited: int = UNLIMITED

    @property
    def present(self) -> bool:
        """There are jobs that give way."""
        return any(self._rows.num_jobs[JobKind.LARGE :])

    @property
    def limited(self) -> bool:
        """The next step limits something."""
        return self._first_limited != UNLIMITED

    def ending(self, job: Job) -> None:
        """Note that a row of a job ends."""
        self._traffic.seen(job.kind)

    def decide(self) -> bool:
        """Choose, for the next step, whether there is a limit."""
        self._first_limited = self._traffic.first_limited() if self.present else UNLIMITED
        return self.limited

    def gives_way(self, request: Request) -> bool:
        """What the next step takes of its prompt is limited."""
        return request.job.kind >= self._first_limited

    def fit(self, max_tokens: int) -> bool:
        """All that wait could begin with the next step of so many tokens, and leave room for one
        that arrives: rows that are limited give way."""
        late = self._classes.running_from(self._first_limited)
        slots = len(self._running.free_slots) + len(late)
        tokens = sum(self._running.beside(late))
        return self._classes.fit(slots, max_tokens - tokens, self._first_limited)

    def split(self, ready: list[Request]) -> tuple[list[Request], list[Request]]:
        """Generating requests that are in the next step in any case, and those that are limited.
        Where there is no limit, all are alike."""
        if not self.limited:
            return [], ready
        late = self._classes.running_from(self._first_limited)
        first = [request for request in ready if request not in late]
        return first, [request for request in ready if request in late]

    def fitting(self, rows: list[Request], first: list[Request], max_tokens: int) -> list[Request]:
        """As many limited generating `rows`, which have waited longest, as fit beside the `first`
        and the prompts that are not limited, in a step of so many tokens."""
        if not self.limited or not rows:
            return rows
        _, token, _, context = self._costs.coefficients
        classes, limited = self._classes, self._first_limited
        prompts = self._running.unsubmitted_beside(classes.running_from(limited))
        prompts += classes.tokens_before(limited)
        room = max_tokens - len(first)
        prompts = min(prompts, room)
        work = StepWork(len(first), contexts=sum(row.submitted + 1 for row in first))
        left = STEP_SECONDS - self._costs.seconds(work) - self._prompt_seconds(prompts)
        rows = sorted(rows, key=_age)
        times = accumulate(token + context * (row.submitted + 1) for row in rows)
        count = min(sum(1 for _ in takewhile(left.__ge__, times)), room - prompts)
        return rows[: max(count, min(self._least_rows, max_tokens // 8), 1)]

    def limit(self, budget: PromptBudget, batch: DecodeBatch, queue: RequestQueue) -> None:
        """Limit what prompts of one class that give way may add to the step."""
        if self.limited:
            left = STEP_SECONDS - self._costs.seconds(batch.work)
            # Regular rows keep their place: one that could not begin would hold up those behind it.
            each = 1 if queue is self._classes.regular else 0
            budget.within(left, self._costs, self._tile, each)

    def _prompt_seconds(self, tokens: int) -> float:
        """What so many prompt tokens of clients add to the next step."""
        seconds = self._costs.chunk_seconds(0, tokens)
        return seconds if self._step_time is None else min(seconds, self._step_time.of(seconds))
