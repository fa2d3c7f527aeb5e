"""The queues of requests that came alone: of regular rows, and of surplus ones."""

import math
from collections.abc import Callable, Iterator

from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.cached_prefix import Claim, cached_prefix, claim_from_cache
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.waiting import WaitingQueue


class ArrivalQueue:
    """API keys take turns; first come, first served in each, priority by priority. Implements
    `QueuePolicy`."""

    def __init__(self, kv: KVCacheManager, max_wait: float, clock: Callable[[], float]) -> None:
        self.waiting: WaitingQueue[Request] = WaitingQueue(max_wait, clock)
        self._kv = kv
        self._blocks = 0  # what those that wait need, cached ones included

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def num_tokens(self) -> int:
        return self.waiting.num_tokens

    def fits(self, slots: int, tokens: int) -> bool:
        """All could begin, and leave one of so many slots, a block, and one of so many tokens."""
        return (
            len(self.waiting) < slots
            and self._blocks < self._kv.num_free
            and self.waiting.num_tokens < tokens
        )

    def add(self, request: Request) -> None:
        tokens = len(request.tokens)
        self.waiting.add(request, request.job.message.key, request.priority, tokens)
        self._blocks += self._kv.blocks_for(tokens)

    def put_back(self, request: Request) -> None:
        tokens = len(request.tokens)
        if not self.waiting.resume(request):
            self.waiting.put_back(request, tokens)
            self._blocks += self._kv.blocks_for(tokens)

    def hold(self, request: Request) -> None:
        self.waiting.given(request, len(request.tokens))
        self.waiting.hold(request)

    def remove(self, request: Request) -> None:
        self._blocks -= self._kv.blocks_for(self.waiting.remove(request))

    def first(self, tokens: int) -> Iterator[Request]:
        """Those that begin next, in order, while so many prompt tokens last."""
        self.waiting.promote_overdue()
        for request in self.waiting:
            if tokens <= 0 or request.in_flight:
                return
            yield request
            tokens -= len(request.tokens)

    def next(self) -> Request | None:
        self.waiting.promote_overdue()
        request = self.waiting.first()
        return None if request is None or request.in_flight else request

    def quota(self, decode_rows: int, micro_batches: int) -> float:
        del decode_rows, micro_batches
        return math.inf

    def claim(self, request: Request) -> Claim | None:
        return claim_from_cache(self._kv, request, cached_prefix(self._kv, request))

    def begun(self, request: Request) -> None:
        self.waiting.given(request, len(request.tokens))
        self.remove(request)

    def grown(self, request: Request) -> None:
        """Nothing is reserved."""

    def left(self, request: Request) -> None:
        """Nothing is held for it."""

    def finished(self, request: Request) -> None:
        """Nothing is learnt from it."""


class SurplusQueue(ArrivalQueue):
    """Rows beyond the share of their job or key. `running` are those that run, oldest first."""

    def __init__(self, kv: KVCacheManager, max_wait: float, clock: Callable[[], float]) -> None:
        super().__init__(kv, max_wait, clock)
        self.running: dict[Request, None] = {}

    @property
    def youngest(self) -> Request | None:
        """The one that runs and began last."""
        return next(reversed(self.running), None)

    def begun(self, request: Request) -> None:
        super().begun(request)
        self.running[request] = None

    def left(self, request: Request) -> None:
        del self.running[request]
