"""How much of a step the batch class takes: beside online traffic, what fills a short time."""

import math
from collections.abc import Callable
from itertools import accumulate, takewhile
from operator import attrgetter

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import CostModel, StepWork
from engine_core.schedulers.prompt_budget import StepTime
from engine_core.schedulers.requests.arrivals import ArrivalQueue
from engine_core.schedulers.requests.groups import GroupQueue
from engine_core.schedulers.requests.online_traffic import STEP_SECONDS, OnlineTraffic
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.running import RunningRequests

_LEAST_ROWS = 32
"""So many rows of the batch class go on in any step, however long what clients wait for takes."""

_age = attrgetter("last_step")


class BatchShare:
    """Limits what steps take of the batch class while requests of clients are there, or were a
    moment ago. Those go first, and are not limited themselves."""

    def __init__(
        self,
        running: RunningRequests,
        arrivals: ArrivalQueue,
        groups: GroupQueue,
        costs: CostModel,
        step_time: StepTime | None,
        clock: Callable[[], float],
    ) -> None:
        """A single stage has no `step_time`."""
        self._running, self._arrivals, self._groups = running, arrivals, groups
        self._costs, self._step_time = costs, step_time
        self.online = OnlineTraffic(self._is_online, clock)
        self.limited = False

    @property
    def present(self) -> bool:
        """There are rows of the batch class."""
        return bool(self._groups.running) or len(self._groups) > 0

    def decide(self) -> bool:
        """Choose, for the next step, whether there is a limit."""
        self.limited = self.present and self.online.is_recent()
        return self.limited

    def fits_arrivals(self, max_tokens: int) -> bool:
        """All that wait could begin with the next step of so many tokens, and leave room for one
        that arrives: rows of the batch class give way."""
        slots = len(self._running.free_slots) + len(self._groups.running)
        tokens = sum(self._running.beside(self._groups.running))
        return self._arrivals.fits(slots, max_tokens - tokens)

    def split(self, ready: list[Request]) -> tuple[list[Request], list[Request]]:
        """Generating requests that clients wait for, which are in the next step in any case, and
        all others. Where there is no limit, all are alike."""
        if not self.limited:
            return [], ready
        online = [request for request in ready if request.group is None]
        return online, [request for request in ready if request.group is not None]

    def fitting(self, rows: list[Request], online: list[Request], max_tokens: int) -> list[Request]:
        """As many generating `rows` of the batch class, which have waited longest, as fit beside
        those `online` and the prompts of clients, in a step of so many tokens."""
        if not self.limited or not rows:
            return rows
        _, token, _, context = self._costs.coefficients
        prompts = self._running.beside(self._groups.running)[1] + self._arrivals.num_tokens
        room = max_tokens - len(online)
        prompts = min(prompts, room)
        work = StepWork(len(online), contexts=sum(row.submitted + 1 for row in online))
        left = STEP_SECONDS - self._costs.seconds(work) - self._prompt_seconds(prompts)
        rows = sorted(rows, key=_age)
        times = accumulate(token + context * (row.submitted + 1) for row in rows)
        count = min(sum(1 for _ in takewhile(left.__ge__, times)), room - prompts)
        return rows[: max(count, min(_LEAST_ROWS, max_tokens // 8), 1)]

    def prompt_seconds(self, batch: DecodeBatch) -> float:
        """What chunks of prompts of the batch class may add to a step that holds all else."""
        return STEP_SECONDS - self._costs.seconds(batch.work) if self.limited else math.inf

    def _prompt_seconds(self, tokens: int) -> float:
        """What so many prompt tokens of clients add to the next step."""
        seconds = self._costs.chunk_seconds(0, tokens)
        return seconds if self._step_time is None else min(seconds, self._step_time.of(seconds))

    def _is_online(self) -> bool:
        return len(self._running) > len(self._groups.running) or len(self._arrivals) > 0
