"""The queue of requests that came alone."""

from collections.abc import Callable, Iterator

from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.request_queue import RequestQueue
from engine_core.schedulers.requests.waiting import WaitingQueue


class OnlineQueue(RequestQueue):
    """API keys take turns; first come, first served in each, priority by priority."""

    def __init__(self, kv: KVCacheManager, max_wait: float, clock: Callable[[], float]) -> None:
        super().__init__(kv)
        self.waiting: WaitingQueue[Request] = WaitingQueue(max_wait, clock)

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def num_tokens(self) -> int:
        return self.waiting.num_tokens

    def add(self, request: Request) -> None:
        self.waiting.add(request, request.job.message.key, request.priority, len(request.tokens))

    def put_back(self, request: Request, shared: int) -> None:
        del shared
        self.waiting.put_back(request, len(request.tokens))

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

    def take(self, request: Request) -> None:
        self.waiting.given(request, len(request.tokens))
        self.remove(request)

    def remove(self, request: Request) -> None:
        self.waiting.remove(request)
