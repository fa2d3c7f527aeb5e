"""Prompts that are being computed, and who waits to share them instead of computing them again."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from engine_core.loop.jobs import JobKind
from engine_core.schedulers.cached_prefix import LEAST_COPIED, cached_prefix, scope_of
from engine_core.schedulers.kv_cache import KVCacheManager, common_tokens
from engine_core.schedulers.request import Request, Status

LEAST_SHARED: Final = 16
"""Tokens that two prompts begin with alike which are worth looking at."""


Resumed = tuple[Request, int]
"""One that waits for others no more, and how many tokens of another it has waited for."""


class PromptsInProgress:
    """Prompts of running requests that are not all computed, sorted by their tokens, by salt.

    The one that begins like a newcomer's for longest is beside its place.
    Rows of one job, and of the batch band, wait until what they share is computed, and rows that
    repeat scores of their prompt until another has all of them. Any other row does so where that
    saves more tokens than a step computes in its fixed time, and for one step.
    """

    def __init__(self, kv: KVCacheManager, fixed_tokens: Callable[[], float]) -> None:
        """A step computes `fixed_tokens` in its fixed time."""
        self._kv, self._fixed_tokens = kv, fixed_tokens
        self._numbers = count()
        self._sorted: dict[bytes, list[tuple[bytes, int, Request]]] = {}  # by salt
        self._entries: dict[Request, tuple[bytes, int, Request]] = {}
        self._waiting: dict[Request, dict[Request, int]] = {}
        self._leaders: dict[Request, Request] = {}
        self._for_one_step: dict[Request, int] = {}
        self.tokens = [0] * len(JobKind)
        """Those of the requests that wait, of each kind."""

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._leaders)

    def __contains__(self, request: Request) -> bool:
        return request in self._leaders

    def begin(self, request: Request) -> None:
        """Enter a request whose known tokens are computed from now on."""
        if len(request.tokens) - request.submitted < LEAST_SHARED:
            return
        entry = self._entries[request] = (request.tokens.tobytes(), next(self._numbers), request)
        insort(self._sorted.setdefault(request.salt, []), entry)

    def holds(self, request: Request, step: int) -> bool:
        """Decide if a request whose turn has come, with this step, waits. If so, `computed`,
        `step_over` or `leave` returns it."""
        scorer = request.scored_by
        if scorer is not None and scorer.awaits_scores and scorer.status is not Status.ENDED:
            self._wait(request, scorer, len(request.tokens))
            return True
        leader, shared = self._most_shared(request)
        if leader is None or shared < LEAST_SHARED:
            return False
        is_stranger = _is_stranger(request, leader)
        if is_stranger and request.has_waited:
            return False
        saved = shared - cached_prefix(self._kv, request).length
        if saved < self._least_saved(request, is_stranger=is_stranger):
            return False
        self._wait(request, leader, shared)
        if is_stranger:
            request.has_waited = True
            self._for_one_step[request] = step
        return True

    def _wait(self, request: Request, leader: Request, shared: int) -> None:
        self._waiting.setdefault(leader, {})[request] = shared
        self._leaders[request] = leader
        self.tokens[request.kind] += len(request.tokens)

    def promote(self, request: Request) -> None:
        """Note that a surplus request that waits becomes a regular one."""
        self.tokens[request.kind] -= len(request.tokens)
        self.tokens[JobKind.SMALL] += len(request.tokens)

    def computed(self, request: Request, stop: int) -> Iterator[Resumed]:
        """Note that a running request is computed up to `stop`. Yields who waited for no more, the
        last one first."""
        if stop >= request.resident_from:
            yield from self.leave(request)
            return
        waiting = self._waiting.get(request, {})
        yield from self._released([each for each, shared in waiting.items() if shared <= stop])

    def step_over(self, step: int) -> Iterator[Resumed]:
        """Note that a step is computed. Yields who waited only for that."""
        return self._released([each for each, at in self._for_one_step.items() if at <= step])

    def leave(self, request: Request) -> Iterator[Resumed]:
        """Remove a request of which nothing is computed any more. Yields who waited for it, last
        ones first."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            own = self._sorted[request.salt]
            del own[bisect_left(own, entry)]
            if not own:
                del self._sorted[request.salt]
        return self._released(list(self._waiting.get(request, {})))

    def forget(self, request: Request) -> int:
        """Remove a request that waits. Returns how many tokens of another it waited for."""
        self._for_one_step.pop(request, None)
        leader = self._leaders.pop(request)
        self.tokens[request.kind] -= len(request.tokens)
        waiting = self._waiting[leader]
        shared = waiting.pop(request)
        if not waiting:
            del self._waiting[leader]
        return shared

    def _released(self, requests: list[Request]) -> Iterator[Resumed]:
        return ((request, self.forget(request)) for request in reversed(requests))

    def _most_shared(self, request: Request) -> tuple[Request | None, int]:
        """The prompt in progress with which it can share most, and how many tokens."""
        own = self._sorted.get(request.salt)
        if own is None or request.awaits_scores:
            return None, 0
        tokens = request.tokens[:-1].tobytes()
        place = bisect_left(own, (tokens,))
        return max(
            (
                (leader, self._shareable(request, leader, common_tokens(prompt, tokens)))
                for prompt, _, leader in own[max(0, place - 1) : place + 1]
            ),
            key=lambda found: found[1],
        )

    def _shareable(self, request: Request, leader: Request, common: int) -> int:
        """Of tokens that both begin with: whole blocks only, where nobody may copy parts."""
        scope = scope_of(request.job)
        if scope is not None and scope == scope_of(leader.job):
            return common
        return common - common % self._kv.block_size

    def _least_saved(self, request: Request, *, is_stranger: bool) -> float:
        """Tokens that are worth waiting for: of a batch, which loses nothing by it, the fewest that
        are copied."""
        if is_stranger:
            return max(LEAST_SHARED, self._fixed_tokens())
        return LEAST_COPIED if request.job.is_batch else LEAST_SHARED


def _is_stranger(request: Request, leader: Request) -> bool:
    """Neither of one job with the other, nor both of the batch band."""
    related = request.job is leader.job or (request.job.is_batch and leader.job.is_batch)
    return not related
