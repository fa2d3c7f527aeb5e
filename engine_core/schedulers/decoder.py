"""Continuous batching for generation: chunked prefill, ahead steps, preemption by recompute.

There is no prefill phase and no decode phase: a step computes some of the tokens that are known and
not yet submitted, of any mix of requests (Sarathi-Serve's chunked prefill; vLLM's v1 scheduler).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engine_core.engine_state import Usage
from engine_core.fair_queuing.key_share import KeyShare
from engine_core.job import Job
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.chunked_prefill import ChunkedPrefill
from engine_core.schedulers.confirm import confirm_rows, fail_off_grammar, num_sampled
from engine_core.schedulers.cost_model import CostModel, StepWork, starting_coefficients
from engine_core.schedulers.kv_cache.kv_cache_manager import KVCacheManager
from engine_core.schedulers.masks import StepMasks
from engine_core.schedulers.micro_batches import MicroBatches
from engine_core.schedulers.preemption import Preemption
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime, efficient_tokens
from engine_core.schedulers.requests.cached_prefix import share_computed, share_text
from engine_core.schedulers.requests.classes import RequestClasses
from engine_core.schedulers.requests.prompts_in_progress import PromptsInProgress, Resumed
from engine_core.schedulers.requests.request import Request, Status
from engine_core.schedulers.requests.row_shares import RowShares
from engine_core.schedulers.requests.running import RunningRequests
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from engine_core.schedulers.short_steps import ShortSteps
from engine_core.schedulers.step_builder import build_decode_step
from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, StepMask


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
