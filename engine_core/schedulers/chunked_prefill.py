"""Chunked prefill: what a step computes of prompts, beside the rows that generate."""

import math

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.micro_batches import MicroBatches
from engine_core.schedulers.prompt_budget import PromptBudget
from engine_core.schedulers.requests.classes import RequestClasses
from engine_core.schedulers.requests.prompts_in_progress import PromptsInProgress
from engine_core.schedulers.requests.request import Request
from engine_core.schedulers.requests.request_queue import RequestQueue
from engine_core.schedulers.requests.running import RunningRequests
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from engine_core.schedulers.short_steps import ShortSteps

_MOST_HELD = 128
"""Requests of a class that a step looks at in vain: thousands may wait for one prompt."""


class ChunkedPrefill:
    """Adds chunks of prompts to steps, class by class: of those that have begun, oldest first; then
    waiting requests begin, in order. Short ones do so before a prompt of several steps goes on.
    Where large jobs give way to small ones, their prompts go on last."""

    def __init__(
        self,
        kv: KVCacheManager,
        running: RunningRequests,
        classes: RequestClasses,
        shared: SharedPrefixes,
        in_progress: PromptsInProgress,
        short_steps: ShortSteps,
        micro_batches: MicroBatches,
    ) -> None:
        self._kv, self._running, self._classes, self._shared = kv, running, classes, shared
        self._in_progress, self._short_steps = in_progress, short_steps
        self._micro_batches = micro_batches
        self.queried_tokens = self.cached_tokens = 0
        """Prompt tokens of all requests that have begun, and how many of them were cached."""

    def add(self, batch: DecodeBatch, budget: PromptBudget) -> None:
        """Add chunks while slots, blocks and budget last."""
        for queue in self._classes.queues:
            if not self._add_class(queue, batch, budget):
                return

    def _add_class(self, queue: RequestQueue, batch: DecodeBatch, budget: PromptBudget) -> bool:
        """False if one of its requests has to wait."""
        prompts = [each for each in self._running.prompts if self._classes.of(each) is queue]
        if not prompts and not queue:
            return True
        budget.limit(queue.quota(batch.num_decodes, self._micro_batches.count))
        self._short_steps.limit(budget, batch, queue)
        prompts.sort(key=self._short_steps.gives_way)
        if prompts and (most := budget.left_by(len(prompts[0].tokens) - prompts[0].submitted)):
            self._begin_all(queue, batch, budget, most)
        for request in prompts:
            if not self._length(request, request.submitted, budget):
                return False
            self._add_chunk(queue, batch, request, budget)
        return self._begin_all(queue, batch, budget)

    def _begin_all(
        self, queue: RequestQueue, batch: DecodeBatch, budget: PromptBudget, most: float = math.inf
    ) -> bool:
        """Begin waiting requests, of at most so many tokens. False if one has to wait."""
        held = 0
        while queue:
            request = queue.next() if self._running.free_slots else None
            if request is None or not self._length(request, 0, budget):
                return False
            if self._in_progress.holds(request, batch.step):
                queue.take(request)
                held += 1
                if held == _MOST_HELD:
                    return False
                continue
            most -= len(request.tokens)
            if most < 0 or not self._begin(queue, batch, request):
                return False
            self._add_chunk(queue, batch, request, budget)
        return True

    def _length(self, request: Request, start: int, budget: PromptBudget) -> int:
        """How many of its known tokens this step can take from `start` on."""
        limited = self._short_steps.gives_way(request)
        return budget.chunk(start, len(request.tokens), limited=limited)

    def _begin(self, queue: RequestQueue, batch: DecodeBatch, request: Request) -> bool:
        """Give a waiting request a slot and its known tokens' blocks. False if too few are free."""
        if (claim := queue.claim(request)) is None:
            return False
        self._running.begin(request, claim.start)
        batch.inits.append(request.slot_init())
        batch.assign_blocks(request, claim.blocks)
        self._shared.enter(request, claim.shared)
        batch.copies += claim.copy
        batch.begun.append(request.job)
        request.begin(claim.start, claim.shared)
        queue.take(request)
        queue.begun(request)
        self._in_progress.begin(request)
        if not request.announced:
            self.cached_tokens += request.cached
            self.queried_tokens += len(request.tokens)
        return True

    def _add_chunk(
        self, queue: RequestQueue, batch: DecodeBatch, request: Request, budget: PromptBudget
    ) -> None:
        """Add the next chunk of the request's known tokens.

        Its full blocks are registered now: any later request, even in the same step, may read them,
        because each layer writes the keys and values of all rows before it attends.
        """
        start, stop = request.submitted, len(request.tokens)
        limited = self._short_steps.gives_way(request)
        # There was time for the first token of a prompt; one behind a cached prefix takes longer.
        length = max(1, budget.chunk(start, stop, limited=limited))
        budget.take(start, length, limited=limited)
        batch.add(request, start, length, start + length == stop)
        self._running.chunk_submitted(request, length)
        request.register_blocks(self._kv, start + length)
