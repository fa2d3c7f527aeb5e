"""Prefixes that requests find in the KV cache when they begin, and leave there for others.

Requests of one salt share whole blocks as soon as a step with them is submitted. Parts of blocks
are copied once they are computed, within one API key; without keys within one job or the batch
band, and by a request that continues a whole computed text. Otherwise a client could guess
another's prompt token by token: `cached_tokens` would show when it is right.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

from engine_core.loop.jobs import Job, JobKind
from engine_core.schedulers.cost_model import CostModel
from engine_core.schedulers.kv_cache import (
    NO_MATCH,
    HeldBlocks,
    KVCacheManager,
    Scope,
    common_tokens,
)
from engine_core.schedulers.request import Request, Status

LEAST_COPIED: Final = 2
"""One token, as the first of all texts, is not worth the copy of a block."""

_LEAST_CONTINUED: Final = 64
"""Nobody guesses a text of more tokens than this."""

_BATCH: Final = "batch band"
_ENDED: Final = "ended texts"


class CachedPrefix(NamedTuple):
    """The longest prefix that a request may share, of `length` tokens.

    They are in `whole` blocks, and in the first part of one more. `held` are the whole ones in each
    group, `sources` that with the part, if there is one."""

    held: list[HeldBlocks]
    sources: list[int]
    whole: int
    length: int

    @property
    def blocks(self) -> list[int]:
        """The whole blocks of all groups."""
        return [block for own in self.held for block in own.held]


def scope_of(job: Job) -> Scope:
    """Name those who share parts of blocks with a job, if any do."""
    if number := job.message.key.number:
        return number
    if job.is_batch:
        return _BATCH
    return job.key if job.num_rows > 1 else None


def cached_prefix(kv: KVCacheManager, request: Request) -> CachedPrefix:
    """Look up the known tokens of a request, but for the last: the next is sampled from its
    logits."""
    request.hashes = kv.hash_blocks(request.tokens, request.hashes, request.salt)
    if request.awaits_scores:
        return CachedPrefix(kv.prefix([]), [], 0, 0)
    size, most = kv.block_size, len(request.tokens) - 1
    whole = kv.longest(request.hashes[: most // size])
    start = whole * size
    rest = request.tokens[start : min(start + size, most)].tobytes()
    sources, count = _match_within(kv, request, whole, rest)
    return CachedPrefix(kv.prefix(request.hashes[:whole]), sources, whole, start + count)


def claim_from_cache(
    kv: KVCacheManager, request: Request, found: CachedPrefix
) -> CachedPrefix | None:
    """Take a request's prefix, as far as `found`, and blocks for what is behind it.

    These are for the rest, or for a first chunk and the windows behind it. They are added to what
    is `held`.

    The prefix's `sources` are held until the step is built. None if too few blocks are free."""
    shared, count = [*found.blocks, *found.sources], kv.blocks_for(len(request.tokens))
    kv.touch(shared)
    if kv.fill(found.held, count):
        return found
    kv.release(shared)
    if not found.sources:
        return None
    whole = CachedPrefix(found.held, [], found.whole, found.whole * kv.block_size)
    return claim_from_cache(kv, request, whole)


def share_computed(kv: KVCacheManager, request: Request, stop: int) -> None:
    """Let others copy the positions of a request before `stop`, which are computed."""
    scope = scope_of(request.job)
    if scope is not None:
        for index in range(request.indexed, kv.blocks_for(stop)):
            _share_block(kv, request, index, scope, stop)
        request.indexed = stop // kv.block_size


def share_text(kv: KVCacheManager, request: Request) -> None:
    """Let others continue what a request that stops running has computed."""
    stop = len(request.tokens) - 1  # the newest token has no position yet
    if stop < request.resident_from:
        return
    share_computed(kv, request, stop)
    index, rest = divmod(stop, kv.block_size)
    if rest and stop > _LEAST_CONTINUED and not request.job.message.key.number:
        _share_block(kv, request, index, _ENDED, stop)


def _share_block(kv: KVCacheManager, request: Request, index: int, scope: Scope, stop: int) -> None:
    size = kv.block_size
    tokens = request.tokens[index * size : min(stop, (index + 1) * size)].tobytes()
    parent = kv.parent_of(index, request.hashes, request.salt)
    for own in request.held:
        if index >= own.first:
            own.group.children.add(own.ids[index], parent, scope, tokens)


def _match_within(
    kv: KVCacheManager, request: Request, index: int, rest: bytes
) -> tuple[list[int], int]:
    """In each group the block behind the first `index` ones that begins with most of `rest`, and
    how many tokens all of these have. None, and 0, if they are too few."""
    parent = kv.parent_of(index, request.hashes, request.salt)
    scope, keyless = scope_of(request.job), not request.job.message.key.number
    sources, least = list[int](), kv.block_size
    for group in kv.groups:
        found = NO_MATCH if scope is None else group.children.longest(parent, scope, rest)
        if keyless:
            continued = group.children.longest_whole(parent, _ENDED, rest)
            if continued[1] > found[1] and index * kv.block_size + continued[1] > _LEAST_CONTINUED:
                found = continued
        if found[1] < LEAST_COPIED:
            return [], 0
        sources.append(found[0])
        least = min(least, found[1])
    return sources, least


LEAST_SHARED: Final = 16
"""Tokens that two prompts begin with alike which are worth looking at."""

Resumed = tuple[Request, int]
"""A request that waits for others no more, and how many tokens of another it waited for."""


_Beginning = tuple[bytes, bytes]
"""A salt, and the first `LEAST_SHARED` tokens."""


def _beginning(request: Request) -> _Beginning:
    return request.salt, request.tokens[:LEAST_SHARED].tobytes()


class PromptsInProgress:
    """Prompts of running requests that are not all computed, and the requests that wait for them.

    Those of one salt that begin alike are sorted by their tokens: the best match of a newcomer is
    beside its place. Rows of one job, and of the batch band, wait until what they share is
    computed; rows that repeat the scores of their prompt for the row that has them; any other for
    one step, if that saves more tokens than a step computes in its fixed time.
    """

    def __init__(self, kv: KVCacheManager, costs: CostModel) -> None:
        self._kv, self._costs = kv, costs
        self._numbers = count()
        self._sorted: dict[_Beginning, list[tuple[bytes, int, Request]]] = {}
        self._entries: dict[Request, tuple[bytes, int, Request]] = {}
        self._waiting: dict[Request, dict[Request, int]] = {}
        self._leaders: dict[Request, Request] = {}
        self._for_one_step: dict[Request, int] = {}
        self.tokens = [0] * len(JobKind)  # of the requests that wait, of each kind

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
        insort(self._sorted.setdefault(_beginning(request), []), entry)

    def holds(self, request: Request, step: int) -> bool:
        """Decide if a request whose turn has come waits, until one of the next three returns it."""
        scorer = request.scored_by
        if scorer is not None and scorer.awaits_scores and scorer.status is not Status.ENDED:
            self._wait(request, scorer, len(request.tokens))
            return True
        leader, shared = self._most_shared(request)
        if leader is None or shared < LEAST_SHARED:
            return False
        # Neither of one job with the other, nor both of the batch band.
        both_batch = request.job.is_batch and leader.job.is_batch
        is_stranger = request.job is not leader.job and not both_batch
        if is_stranger and request.has_waited:
            return False
        # Hashing thousands of tokens for each row would be most of its work in the scheduler.
        request.hashes = request.hashes or leader.hashes[: shared // self._kv.block_size]
        cached = cached_prefix(self._kv, request).length
        # A batch loses nothing by waiting, and many rows lack what the first of their job computes.
        waits = request.job.is_batch or cached < request.shared
        least: float = LEAST_COPIED if waits else LEAST_SHARED
        if is_stranger:
            costs = self._costs.coefficients
            least = max(LEAST_SHARED, costs.step / costs.token)
        # What the leader has computed and given back will not come again.
        if shared - cached < least or self._kv.is_behind(leader.held, shared):
            return False
        self._wait(request, leader, shared)
        if is_stranger:
            request.has_waited = True
            self._for_one_step[request] = step
        return True

    def _wait(self, request: Request, leader: Request, shared: int) -> None:
        self._waiting.setdefault(leader, {})[request] = shared
        self._leaders[request] = leader
        self.tokens[request.kind] += request.own_tokens

    def promote(self, request: Request) -> None:
        """Note that a large request that waits becomes a small one."""
        self.tokens[request.kind] -= request.own_tokens
        self.tokens[JobKind.SMALL] += request.own_tokens

    def computed(self, request: Request, stop: int) -> Iterator[Resumed]:
        """Note that a request is computed up to `stop`. Yields those that waited for no more, the
        last one first."""
        if stop >= request.resident_from:
            return self.leave(request)
        waiting = self._waiting.get(request, {})
        return self._released([each for each, shared in waiting.items() if shared <= stop])

    def step_over(self, step: int) -> Iterator[Resumed]:
        """Note that a step is computed. Yields the requests that waited only for that."""
        return self._released([each for each, at in self._for_one_step.items() if at <= step])

    def leave(self, request: Request) -> Iterator[Resumed]:
        """Remove a request that stops being computed. Yields those that waited for it."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            beginning = _beginning(request)
            own = self._sorted[beginning]
            del own[bisect_left(own, entry)]
            if not own:
                del self._sorted[beginning]
        return self._released(list(self._waiting.get(request, {})))

    def forget(self, request: Request) -> int:
        """Remove a request that waits. Returns how many tokens of another it waited for."""
        self._for_one_step.pop(request, None)
        leader = self._leaders.pop(request)
        self.tokens[request.kind] -= request.own_tokens
        waiting = self._waiting[leader]
        shared = waiting.pop(request)
        if not waiting:
            del self._waiting[leader]
        return shared

    def _released(self, requests: list[Request]) -> Iterator[Resumed]:
        return ((request, self.forget(request)) for request in reversed(requests))

    def _most_shared(self, request: Request) -> tuple[Request | None, int]:
        """The prompt in progress that shares most with a request, and how many tokens."""
        own = self._sorted.get(_beginning(request))
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
        """The part of `common` tokens that may be shared: whole blocks only beyond a scope."""
        scope = scope_of(request.job)
        if scope is not None and scope == scope_of(leader.job):
            return common
        return common - common % self._kv.block_size
