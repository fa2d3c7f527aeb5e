"""The requests that wait for a slot, in a queue for each kind: regular rows, surplus ones, batches.

Those of a later kind give way to regular ones.
"""

import math
from collections.abc import Callable, Iterator

from engine_core.loop.jobs import JobKind
from engine_core.messages import NO_KEY
from engine_core.schedulers.kv_cache import KVCacheManager, common_tokens
from engine_core.schedulers.prefixes import LEAST_SHARED, Claim, cached_prefix, claim_from_cache
from engine_core.schedulers.prompt_budget import efficient_tokens
from engine_core.schedulers.request import Request
from engine_core.schedulers.waiting import WaitingQueue
from workers.contract.config import ExecutionConfig

_CATCH_UP = 1.25
"""More prompt tokens a step than balance endings: rows hold slots while their prompts are computed,
and ends come in bursts. With 32 slots steps are then filled to 96 % in place of 89."""


class RequestQueue(WaitingQueue[Request]):
    """API keys take turns; first come, first served in each, priority by priority."""

    def __init__(self, kv: KVCacheManager, max_wait: float, clock: Callable[[], float]) -> None:
        super().__init__(max_wait, clock)
        self._kv = kv

    def append(self, request: Request) -> None:
        """A new request waits."""
        self.add(request, request.job.message.key, request.priority, len(request.tokens))

    def put_back(self, request: Request, shared: int) -> None:
        """Put a request before all others, which was preempted, or whose turn had come and which
        has waited for `shared` tokens of another."""
        del shared
        self.put_first(request, len(request.tokens))

    def arrivals(self, tokens: float) -> Iterator[Request]:
        """Those that begin next, in order, while so many prompt tokens last."""
        self.promote_overdue()
        for request in self:
            if tokens <= 0 or request.in_flight:
                return
            yield request
            tokens -= len(request.tokens)

    def next(self) -> Request | None:
        """Return the request that begins next, or None if none may."""
        self.promote_overdue()
        request = self.first()
        return None if request is None or request.in_flight else request

    def take(self, request: Request) -> None:
        """Remove a request because its turn has come: its key is charged."""
        self.given(request, len(request.tokens))
        self.remove(request)

    def claim(self, request: Request) -> Claim | None:
        """Take the blocks with which a request begins; None if too few are free."""
        return claim_from_cache(self._kv, request, cached_prefix(self._kv, request))


class BatchQueue(RequestQueue):
    """The queue of the batch band: rows begin in the order in which they came.

    What neighbours share is still in the cache then, so whoever sends many prompts sends them
    sorted by their tokens. A row begins only if the cache holds what all that run are still
    expected to need: none gives way to the growth of another. Endings and beginnings balance
    (BatchLLM, arXiv:2412.03594): prompts fill the steps which decoding alone does not.
    """

    def __init__(
        self, kv: KVCacheManager, config: ExecutionConfig, clock: Callable[[], float]
    ) -> None:
        super().__init__(kv, math.inf, clock)
        self._max_running, self._step_tokens = config.max_running, efficient_tokens(config)
        self._rows = self._row_tokens = 0  # all that came: rows, and tokens to compute for them
        self._newest: Request | None = None
        self._expected: dict[Request, int] = {}  # the blocks that each which runs will need
        self._growth = 0  # blocks that those which run are still expected to need
        self._ended = self._output = 0  # rows that have come to their own end, and their tokens

    def append(self, request: Request) -> None:
        own = len(request.tokens) - self._shared_with_last(request)
        self.add(request, NO_KEY, 0, own)
        self._newest = request
        self._rows += 1
        self._row_tokens += own

    def put_back(self, request: Request, shared: int) -> None:
        self.put_first(request, len(request.tokens) - shared)

    def claim(self, request: Request) -> Claim | None:
        found = cached_prefix(self._kv, request)
        if self._expected:
            needed = self._expected_blocks(request) - self._kv.num_held(found.blocks)
            if self._kv.num_free < self._growth + needed:
                return None
        return claim_from_cache(self._kv, request, found)

    def quota(self, decode_rows: int, micro_batches: int) -> int:
        """The most prompt tokens of a step beside so many decode rows: what as many rows as can run
        need in the time of an output, and at least what fills a step worth its fixed cost."""
        if not self._rows:
            return 0
        computed, output = self._row_tokens / self._rows, self._mean_output()
        held = self._kv.num_blocks * self._kv.block_size / (computed + output)
        balance = _CATCH_UP * min(self._max_running, held) * computed / output / micro_batches
        return math.ceil(max(balance, self._step_tokens - decode_rows, 1))

    def begun(self, request: Request) -> None:
        """Note that a request runs, with the blocks that it has claimed."""
        self._expected[request] = needed = self._expected_blocks(request)
        self._growth += max(0, needed - len(request.blocks))

    def grown(self, request: Request) -> None:
        """Note that a request has got one more block."""
        self._growth -= len(request.blocks) <= self._expected[request]

    def left(self, request: Request) -> None:
        """Note that a request gives back its slot and its blocks."""
        self._growth -= max(0, self._expected.pop(request) - len(request.blocks))

    def finished(self, request: Request) -> None:
        """Note that a request has come to its own end: so long are outputs."""
        self._ended += 1
        self._output += len(request.tokens) - request.prompt_len

    def _shared_with_last(self, request: Request) -> int:
        """How many tokens a new row begins with like the one that came before it."""
        other = self._newest
        if other is None or request.awaits_scores or other.salt != request.salt:
            return 0
        shared = common_tokens(other.tokens.tobytes(), request.tokens[:-1].tobytes())
        return shared if shared >= LEAST_SHARED else 0

    def _expected_blocks(self, request: Request) -> int:
        """Blocks for a request with an output as long as the mean, or as long as it may be while
        none has ended."""
        most = request.max_len - request.prompt_len
        output = min(most, math.ceil(self._mean_output())) if self._ended else most
        return self._kv.blocks_for(request.prompt_len + output)

    def _mean_output(self) -> float:
        """Output tokens of a row that has ended; before the first end those that one may have. At
        least one: a row that embeds has none."""
        if self._ended:
            return max(1.0, self._output / self._ended)
        request = next(iter(self._expected), self._newest)
        return 1.0 if request is None else max(1.0, request.max_len - request.prompt_len)


class WaitingRequests:
    """A queue for each kind of rows, in the order in which they begin. A large job has regular
    rows, too; its queue has the surplus ones."""

    def __init__(
        self, kv: KVCacheManager, config: ExecutionConfig, clock: Callable[[], float]
    ) -> None:
        self._kv = kv
        self.regular = RequestQueue(kv, config.max_priority_wait, clock)
        self.surplus = RequestQueue(kv, config.max_priority_wait, clock)
        self.batch = BatchQueue(kv, config, clock)
        self.queues: tuple[RequestQueue, ...] = (self.regular, self.surplus, self.batch)
        """By `JobKind`."""

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.queues))

    def tokens_before(self, limited: int = len(JobKind)) -> int:
        """Prompt tokens that wait, of kinds before this one: at least one of each request."""
        return sum([queue.num_tokens for queue in self.queues[:limited]])

    def fit(self, slots: int, tokens: int, limited: int) -> bool:
        """All that wait, of kinds before this one, could begin, and leave one of so many slots, a
        block, and one of so many tokens."""
        waiting, rows = self.tokens_before(limited), sum(map(len, self.queues[:limited]))
        blocks = waiting // self._kv.block_size + rows
        return rows < slots and waiting < tokens and blocks < self._kv.num_free

    def of(self, request: Request) -> RequestQueue:
        """The queue of a request's kind."""
        return self.queues[request.kind]
