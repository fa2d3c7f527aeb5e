"""The classes of a decoder's requests: regular rows, surplus ones, and those of batches."""

from collections.abc import Callable

from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.arrivals import ArrivalQueue, SurplusQueue
from engine_core.schedulers.requests.batch_queue import BatchQueue
from engine_core.schedulers.requests.queue_policy import QueuePolicy
from engine_core.schedulers.requests.request import Request, Status
from workers.contract.config import ExecutionConfig


class RequestClasses:
    """A queue for each class. `in_turn` has them in the order in which their requests begin; those
    of a later class give way to those of the first."""

    def __init__(
        self,
        kv: KVCacheManager,
        config: ExecutionConfig,
        step_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        """A device computes efficiently from `step_tokens` a step on."""
        self.arrivals = ArrivalQueue(kv, config.max_priority_wait, clock)
        self.surplus = SurplusQueue(kv, config.max_priority_wait, clock)
        self.batch = BatchQueue(kv, config.max_running, step_tokens)
        self.in_turn: tuple[QueuePolicy, ...] = (self.arrivals, self.surplus, self.batch)

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.in_turn))

    @property
    def num_tokens(self) -> int:
        """Those of prompts that wait: of each at least one."""
        arrivals, surplus = self.arrivals.waiting, self.surplus.waiting
        return arrivals.num_tokens + surplus.num_tokens + self.batch.num_tokens

    def fit(self, slots: int, tokens: int) -> bool:
        """All that wait are of the first class, could begin, and would leave room for another."""
        alone = self.num_tokens == self.arrivals.num_tokens
        return alone and self.arrivals.fits(slots, tokens)

    @property
    def youngest_below(self) -> Request | None:
        """The youngest row of the last class that has any running; None if only the first has."""
        return self.batch.youngest or self.surplus.youngest

    def of(self, request: Request) -> QueuePolicy:
        """The queue of a request's class."""
        if request.job.is_batch:
            return self.batch
        return self.surplus if request.surplus else self.arrivals

    @property
    def has_below(self) -> bool:
        """There are requests of other classes than the first, running or waiting."""
        running = self.batch.running or self.surplus.running
        return bool(running or self.surplus.waiting.num_tokens or self.batch.num_tokens)

    def below(self) -> dict[Request, None]:
        """What runs of all classes but the first."""
        return dict.fromkeys([*self.batch.running, *self.surplus.running])

    def promote(self, request: Request) -> None:
        """A surplus row is a regular one from now on."""
        if request.status is Status.RUNNING:
            self.surplus.left(request)
        else:
            self.surplus.remove(request)
        request.surplus = False
        if request.status is Status.WAITING:
            self.arrivals.add(request)
