"""How much of a step the batch band and large jobs take: beside requests of clients, what fills a
short time."""

from collections.abc import Callable
from itertools import accumulate, takewhile
from operator import attrgetter

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import CostModel, StepWork
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime, tile_tokens
from engine_core.schedulers.requests.classes import RequestClasses
from engine_core.schedulers.requests.online_traffic import STEP_SECONDS, OnlineTraffic
from engine_core.schedulers.requests.queue_policy import QueuePolicy
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.row_shares import RowShares
from engine_core.schedulers.requests.running import RunningRequests
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
        self._small = OnlineTraffic(lambda: rows.small_jobs > 0, clock)
        self._clients = OnlineTraffic(lambda: rows.client_jobs > 0, clock)
        self._beside_small = self.limited = False

    @property
    def present(self) -> bool:
        """There are rows of lower classes."""
        return self._classes.has_below

    def ending(self) -> None:
        """A row is about to end."""
        if self._rows.client_jobs:
            self._clients.seen()
        if self._rows.small_jobs:
            self._small.seen()

    def decide(self) -> bool:
        """Choose, for the next step, whether there is a limit."""
        if not self.present:
            self._beside_small = self.limited = False
            return False
        queue = self._classes.batch
        batch = bool(queue.running) or len(queue) > 0
        self._beside_small = self._small.is_recent()
        self.limited = self._beside_small or (batch and self._clients.is_recent())
        return self.limited

    def gives_way(self, request: Request) -> bool:
        """What the next step takes of its prompt is limited."""
        if not self.limited:
            return False
        if self._classes.of(request) is not self._classes.arrivals:
            return True
        return self._beside_small and self._rows.is_large(request.job)

    def fits_arrivals(self, max_tokens: int) -> bool:
        """All that wait could begin with the next step of so many tokens, and leave room for one
        that arrives: rows of lower classes give way."""
        below = self._classes.below()
        slots = len(self._running.free_slots) + len(below)
        tokens = sum(self._running.beside(below))
        return self._classes.arrivals.fits(slots, max_tokens - tokens)

    def split(self, ready: list[Request]) -> tuple[list[Request], list[Request]]:
        """Generating requests of the first class, which are in the next step in any case, and all
        others. Where there is no limit, all are alike."""
        if not self.limited:
            return [], ready
        queue_of, regular = self._classes.of, self._classes.arrivals
        first = [request for request in ready if queue_of(request) is regular]
        return first, [request for request in ready if queue_of(request) is not regular]

    def fitting(self, rows: list[Request], first: list[Request], max_tokens: int) -> list[Request]:
        """As many generating `rows` of lower classes, which have waited longest, as fit beside the
        `first` class and its prompts, in a step of so many tokens."""
        if not self.limited or not rows:
            return rows
        _, token, _, context = self._costs.coefficients
        classes = self._classes
        prompts = self._running.unsubmitted_beside(classes.below()) + classes.arrivals.num_tokens
        room = max_tokens - len(first)
        prompts = min(prompts, room)
        work = StepWork(len(first), contexts=sum(row.submitted + 1 for row in first))
        left = STEP_SECONDS - self._costs.seconds(work) - self._prompt_seconds(prompts)
        rows = sorted(rows, key=_age)
        times = accumulate(token + context * (row.submitted + 1) for row in rows)
        count = min(sum(1 for _ in takewhile(left.__ge__, times)), room - prompts)
        return rows[: max(count, min(self._least_rows, max_tokens // 8), 1)]

    def limit(self, budget: PromptBudget, batch: DecodeBatch, queue: QueuePolicy) -> None:
        """Limit what prompts of one class that give way may add to the step."""
        if self.limited:
            left = STEP_SECONDS - self._costs.seconds(batch.work)
            # Regular rows keep their place: one that could not begin would hold up those behind it.
            each = 1 if queue is self._classes.arrivals else 0
            budget.within(left, self._costs, self._tile, each)

    def _prompt_seconds(self, tokens: int) -> float:
        """What so many prompt tokens of clients add to the next step."""
        seconds = self._costs.chunk_seconds(0, tokens)
        return seconds if self._step_time is None else min(seconds, self._step_time.of(seconds))
