"""Continuous batching for generation: chunked prefill, ahead steps, preemption by recompute.

There is no prefill phase and no decode phase: a step computes some of the tokens that are known and
not yet submitted, of any mix of requests (Sarathi-Serve's chunked prefill; vLLM's v1 scheduler).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engine_core.loop.jobs import Job, JobKind
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import KeyShare, Usage
from engine_core.schedulers.batches import DecodeBatch, build_decode_step
from engine_core.schedulers.cached_prefix import cached_prefix, share_computed, share_text
from engine_core.schedulers.cost_model import CostModel, starting_coefficients
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.masks import StepMasks
from engine_core.schedulers.micro_batches import MicroBatches
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime, efficient_tokens
from engine_core.schedulers.prompts_in_progress import PromptsInProgress, Resumed
from engine_core.schedulers.queues import RequestClasses, RequestQueue
from engine_core.schedulers.request import Request, Status
from engine_core.schedulers.results import confirm_rows, fail_off_grammar, num_sampled
from engine_core.schedulers.row_shares import RowShares
from engine_core.schedulers.running import RunningRequests
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from engine_core.schedulers.short_steps import ShortSteps
from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, StepMask

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


class DecoderScheduler:
    """API keys take turns; first come, first served in each, priority by priority. Then come rows
    beyond a share, and the batch band last. The oldest request always makes progress.

    Invariants: a running request holds a slot and the blocks of every submitted position, a waiting
    one holds neither. Running requests, then preempted ones, are in the order in which they began;
    requests that have not begun follow by (key, priority, arrival). Each request alone fits the
    cache: its workflow has checked that.
    """

    def __init__(
        self,
        config: ExecutionConfig,
        num_blocks: int,
        clock: Callable[[], float] = time.monotonic,
        cost_model: CostModel | None = None,
    ) -> None:
        self._costs = cost_model or CostModel(starting_coefficients(config.model))
        self._step_time = StepTime(config, self._costs) if config.num_stages > 1 else None
        self._ahead = config.steps_ahead > 0
        self.kv = KVCacheManager(num_blocks, config.block_size)
        self._preemptions = self._generated_tokens = 0
        self._max_tokens = config.max_step_tokens
        self._running = RunningRequests(config.max_running)
        self._shared = SharedPrefixes(self.kv, self._running, not config.disable_cascade_attn)
        self._micro_batches = MicroBatches(config, self._step_time, self._shared)
        self._classes = RequestClasses(self.kv, config, efficient_tokens(config), clock)
        self._in_progress = PromptsInProgress(self.kv, self._costs.fixed_tokens)
        self._preemption = Preemption(self.kv, self._running, self._classes, self._preempt)
        self._rows = RowShares(config.max_running, clock)
        self._short_steps = ShortSteps(
            config, self._running, self._classes, self._rows, self._costs, self._step_time, clock
        )
        self._prefill = ChunkedPrefill(
            self.kv,
            self._running,
            self._classes,
            self._shared,
            self._in_progress,
            self._short_steps,
            self._micro_batches,
        )
        self._masks = StepMasks(config.model.vocab_size)
        self._constrained = self._step = 0

    def usage(self) -> Usage:
        return Usage(
            running=len(self._running),
            waiting=len(self._classes) + len(self._in_progress),
            kv_blocks_used=self.kv.num_blocks - self.kv.num_free,
            kv_blocks_total=self.kv.num_blocks,
            kv_blocks_peak=self.kv.peak,
            queried_tokens=self._prefill.queried_tokens,
            cached_tokens=self._prefill.cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
        )

    def add(self, job: Job, rows: Iterable[Request]) -> None:
        for request in self._rows.open(job, rows):
            self._enter(request)

    @property
    def queued_tokens(self) -> int:
        waiting = self._classes.num_tokens + self._in_progress.num_tokens
        return self._running.unsubmitted + waiting

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        begun = self._running.unsubmitted_beside(self._classes.surplus.running)
        begun += self._in_progress.num_regular_tokens
        return begun + self._classes.regular.waiting.tokens_before(priority, key)

    def abort(self, job: Job, row: int | None = None) -> int:
        if row is None:
            return sum(map(self._end, self._rows.close(job)))
        return 0 if (request := self._rows.find(job.key, row)) is None else self._end(request)

    def reset_cache(self) -> None:
        self.kv.reset()

    def schedule(self, oldest: DecodeBatch | None) -> DecodeBatch | None:
        batch = DecodeBatch(self._step)
        running = self._running
        limited = self._short_steps.decide()
        startable = self.queued_tokens if running.free_slots else running.unsubmitted
        # More micro-batches of short steps would only keep clients waiting.
        self._micro_batches.decide(running.generating, 0 if limited else startable)
        ahead_of = oldest.step if oldest is not None and self._ahead else -1
        # A row of the oldest step keeps the first stage waiting if that step has stages before it:
        # so it is the choice of last resort until all micro-batches are in flight.
        full = self._step - ahead_of >= self._micro_batches.count
        self._add_decodes(batch, ahead_of if full else -1)
        if self.has_prompts():
            room, others = self._max_tokens - batch.num_tokens, batch.num_tokens
            budget = PromptBudget(room, self.queued_tokens, self._step_time, others)
            self._prefill.add(batch, budget)
        if not batch.requests and not full:
            self._add_decodes(batch, ahead_of)
        # What is copied is copied first: later steps may write there.
        self.kv.release(batch.copies[::2])
        if not batch.requests:
            return None
        self._step += 1
        return batch

    def depth(self) -> int:
        return self._micro_batches.depth

    def observe(self, work: StepWork, seconds: float) -> None:
        if self._step_time is not None or self._short_steps.present:
            self._costs.observe(work, seconds)

    def is_open(self) -> bool:
        """A slot, a KV block and token budget remain after admitting everything now waiting."""
        return self._short_steps.fit(self._max_tokens)

    def has_prompts(self) -> bool:
        return self.queued_tokens > 0

    def build(self, batch: DecodeBatch) -> DecodeStep:
        masked = self._masks.owe(batch) if self._constrained else b""
        return build_decode_step(batch, masked, self._shared.groups(batch))

    def masks(self, outbox: Outbox) -> Iterator[StepMask]:
        for mask, failed in self._masks.compute():
            for request in failed:
                fail_off_grammar(request, outbox)
                self.abort(request.job)
            yield mask

    def update(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> None:
        self._share(batch)
        for request in self._confirm(batch, output, outbox):
            if request.job.is_batch:
                self._classes.batch.finished(request)
            self._end(request)
            if request.job.ended:
                self.abort(request.job)

    def _confirm(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> Iterator[Request]:
        """Apply a step's results to its requests; yields those that are over."""
        self._generated_tokens += num_sampled(batch)
        return confirm_rows(batch, output, self.kv, outbox)

    def _share(self, batch: DecodeBatch) -> None:
        """What a step has computed of prompts may be copied; who waited for it does so no more."""
        for row in range(batch.num_decodes, len(batch.requests)):
            request, stop = batch.requests[row], batch.starts[row] + batch.lens[row]
            if request.status is Status.RUNNING:
                share_computed(self.kv, request, stop)
                self._resume(self._in_progress.computed(request, stop))
        self._resume(self._in_progress.step_over(batch.step))

    def _resume(self, requests: Iterable[Resumed]) -> None:
        for request, shared in requests:
            self._classes.of(request).put_back(request, shared)

    def _add_decodes(self, batch: DecodeBatch, oldest_step: int) -> None:
        """Add one token of each generating request that can go on. A pipeline divides these
        requests evenly over its micro-batches."""
        size, preempted = self.kv.block_size, self._preemptions
        # Only requests without room for their next position need `_grow`.
        ready = [
            request
            for request in self._running.ready(oldest_step)
            if request.submitted < len(request.blocks) * size or self._grow(batch, request)
        ]
        # Now that rows have grown: what is freed for arrivals is left for them.
        self._preemption.for_arrivals(self._max_tokens)
        if self._preemptions > preempted:
            ready = [request for request in ready if request.status is Status.RUNNING]
        first, ready = self._short_steps.split(ready)
        rows = self._micro_batches.share(ready, self._running.contexts, batch.step)
        rows = first + self._short_steps.fitting(rows, first, self._max_tokens)
        batch.add_decodes(self._shared.adjacent(rows[: self._max_tokens]))
        self._running.contexts += batch.num_decodes

    def _grow(self, batch: DecodeBatch, request: Request) -> bool:
        """Allocate the block of the request's next position. False if it is not in this step: no
        block is free, or the request was preempted for an older one."""
        if request.status is not Status.RUNNING:
            return False
        while (blocks := self.kv.allocate(1)) is None:
            if not self._preemption.for_growth(request):
                return False
        batch.assign_blocks(request, blocks)
        if request.job.is_batch:
            self._classes.batch.grown(request)
        return True

    def _end(self, request: Request) -> bool:
        """The request is over: release its slot and blocks. False if it was over already.

        Steps in flight may still write those blocks: every stage runs steps in submit order, so a
        later step may reuse them at once.
        """
        if request.status is Status.ENDED:
            return False
        if request.status is Status.RUNNING:
            self._release(request)
        else:
            self._resume(self._in_progress.leave(request))
            if request in self._in_progress:
                self._in_progress.forget(request)
            else:
                self._classes.of(request).remove(request)
        request.status = Status.ENDED
        self._constrained -= request.constrained
        self._short_steps.ending(request.job)
        promoted, made = self._rows.ended(request)
        if promoted is not None:
            self._classes.promote(promoted, held=promoted in self._in_progress)
            self._in_progress.promoted(promoted)
        if made is not None:
            self._enter(made)
        return True

    def _enter(self, request: Request) -> None:
        self._constrained += request.constrained
        self._classes.of(request).add(request)

    def _preempt(self, request: Request) -> None:
        self._preemptions += 1
        self._release(request)
        request.wait_again()
        self._classes.of(request).put_back(request, 0)

    def _release(self, request: Request) -> None:
        """Give back the slot and the blocks of a running request."""
        self._resume(self._in_progress.leave(request))
        share_text(self.kv, request)
        self._running.leave(request)
        self._classes.of(request).left(request)
        self._shared.leave(request)
        self.kv.release(request.blocks)
        request.blocks = []
