"""The classes of a decoder's requests: regular rows, surplus ones, and those of batches."""

from collections.abc import Callable

from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.batch_queue import BatchQueue
from engine_core.schedulers.requests.online_queue import OnlineQueue
from engine_core.schedulers.requests.request import Request, Status
from engine_core.schedulers.requests.request_queue import RequestQueue
from workers.contract.config import ExecutionConfig


class RequestClasses:
    """A queue for each class, in the order in which their requests begin: those of a later class
    give way to regular ones. A large job has regular rows, too; its queue has the surplus ones."""

    def __init__(
        self,
        kv: KVCacheManager,
        config: ExecutionConfig,
        step_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        """A device computes efficiently from `step_tokens` a step on."""
        self._kv = kv
        self.regular = OnlineQueue(kv, config.max_priority_wait, clock)
        self.surplus = OnlineQueue(kv, config.max_priority_wait, clock)
        self.batch = BatchQueue(kv, config.max_running, step_tokens)
        self.queues: tuple[RequestQueue, ...] = (self.regular, self.surplus, self.batch)
        """By `JobKind`."""

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.queues))

    @property
    def num_tokens(self) -> int:
        """Those of prompts that wait: of each at least one."""
        return self.regular.num_tokens + self.surplus.num_tokens + self.batch.num_tokens

    def tokens_before(self, limited: int) -> int:
        """The same of the classes before this one."""
        return sum(queue.num_tokens for queue in self.queues[:limited])

    def fit(self, slots: int, tokens: int, limited: int) -> bool:
        """All that wait, of classes before this one, could begin, and leave one of so many slots,
        a block, and one of so many tokens."""
        waiting, rows = self.tokens_before(limited), sum(map(len, self.queues[:limited]))
        blocks = waiting // self._kv.block_size + rows
        return rows < slots and waiting < tokens and blocks < self._kv.num_free

    @property
    def youngest_below(self) -> Request | None:
        """The youngest row of the last class that has any running; None if only the first has."""
        return next(reversed(self.batch.running or self.surplus.running), None)

    def of(self, request: Request) -> RequestQueue:
        """The queue of a request's class."""
        if request.job.is_batch:
            return self.batch
        return self.surplus if request.surplus else self.regular

    def running_from(self, limited: int) -> dict[Request, None]:
        """What runs of this class and those behind it."""
        return dict.fromkeys(row for queue in self.queues[limited:] for row in queue.running)

    def promote(self, request: Request, *, held: bool) -> None:
        """A surplus row is a regular one from now on. If it is `held`, it is in no queue."""
        request.surplus = False
        if request.status is Status.RUNNING:
            self.surplus.left(request)
            self.regular.begun(request)
        elif not held:
            self.surplus.remove(request)
            self.regular.add(request)
