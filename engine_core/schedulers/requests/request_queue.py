"""In which order waiting requests begin, and with which blocks."""

import math
from abc import ABC, abstractmethod

from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.cached_prefix import Claim, cached_prefix, claim_from_cache
from engine_core.schedulers.requests.request import Request


class RequestQueue(ABC):
    """The requests of a class: those that wait, in order, and those that run, as they began."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self.running: dict[Request, None] = {}

    @abstractmethod
    def __len__(self) -> int:
        """How many wait."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Prompt tokens that are to be computed for those that wait, about."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Append a new request."""

    @abstractmethod
    def put_back(self, request: Request, shared: int) -> None:
        """Put a request before all others, which was preempted, or whose turn had come and which
        has waited for `shared` tokens of another."""

    @abstractmethod
    def next(self) -> Request | None:
        """Return the request that begins next, or None if none may."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Remove a request that has ended."""

    def take(self, request: Request) -> None:
        """Remove a request because its turn has come."""
        self.remove(request)

    def quota(self, decode_rows: int, micro_batches: int) -> float:
        """How many prompt tokens a step may take beside so many decode rows, as one of so many
        micro-batches."""
        del decode_rows, micro_batches
        return math.inf

    def claim(self, request: Request) -> Claim | None:
        """Take the blocks with which a request begins; None if too few are free."""
        return claim_from_cache(self._kv, request, cached_prefix(self._kv, request))

    def begun(self, request: Request) -> None:
        """Note that a request runs, with the blocks that it has claimed."""
        self.running[request] = None

    def left(self, request: Request) -> None:
        """Note that a request gives back its slot and its blocks."""
        del self.running[request]
