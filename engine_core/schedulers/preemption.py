"""Who gives way where slots or blocks are short: rows of the batch band, then surplus rows, then
the youngest."""

from collections.abc import Callable

from engine_core.job import JobKind
from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.cached_prefix import cached_prefix
from engine_core.schedulers.requests.classes import RequestClasses
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.running import RunningRequests


class Preemption:
    """Chooses the running requests that wait again. The oldest request always makes progress, and a
    row of the batch band never takes anything from another."""

    def __init__(
        self,
        kv: KVCacheManager,
        running: RunningRequests,
        classes: RequestClasses,
        preempt: Callable[[Request], None],
    ) -> None:
        """`preempt` makes a running request wait again, without slot and blocks."""
        self._kv, self._running = kv, running
        self._classes, self._preempt = classes, preempt

    def for_growth(self, request: Request) -> bool:
        """Free blocks for a running request. False if it is itself the one that would give way, or
        if a token of it is unresolved: it may be about to end."""
        youngest = self._classes.youngest_below or self._running.youngest
        if request.unresolved or youngest is request:
            return False
        self._preempt(youngest)
        return True

    def for_arrivals(self, max_tokens: int) -> None:
        """Rows of the batch band, and surplus ones, give way to all regular requests that a step
        of so many tokens could begin."""
        if not self._classes.regular or self._classes.youngest_below is None:
            return
        blocks = 0
        before = sum(self._running.beside(self._classes.running_from(JobKind.LARGE)))
        arrivals = self._classes.regular.first(max_tokens - before)
        for slots, request in enumerate(arrivals, 1):
            held = self._kv.num_held(cached_prefix(self._kv, request).blocks)
            blocks += self._kv.blocks_for(len(request.tokens)) - held
            if not self._free(slots, blocks):
                return

    def _free(self, slots: int, blocks: int) -> bool:
        """Free so many slots and blocks at the cost of rows of lower classes; False if they have
        too few."""
        free_slots = self._running.free_slots
        while len(free_slots) < slots or self._kv.num_free < blocks:
            if (youngest := self._classes.youngest_below) is None:
                return False
            self._preempt(youngest)
        return True
