"""Continuous batching for generation: chunked prefill, ahead steps, preemption by recompute.

A step computes known tokens that are not submitted yet, of any mix of requests (Sarathi-Serve's
chunked prefill; vLLM's v1 scheduler).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from engine_core.loop.jobs import Job, JobKind
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import KeyShare, Usage
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import CostModel, starting_coefficients
from engine_core.schedulers.expected_growth import ExpectedGrowth
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.masks import StepMasks
from engine_core.schedulers.micro_batches import MicroBatches
from engine_core.schedulers.prefixes import (
    PromptsInProgress,
    Resumed,
    cached_prefix,
    claim_from_cache,
    share_computed,
    share_text,
)
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime
from engine_core.schedulers.queues import RequestQueue, RunningRequests, WaitingRequests
from engine_core.schedulers.request import Request, Status
from engine_core.schedulers.results import (
    confirm_encoded_rows,
    confirm_rows,
    fail_off_grammar,
    num_sampled,
)
from engine_core.schedulers.row_shares import RowShares
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from engine_core.schedulers.short_steps import ShortSteps
from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, GenerateOutput, StepMask

_MOST_HELD = 128
"""Requests of a kind that a step makes wait for others: thousands may wait for one prompt."""


class DecoderScheduler:
    """Requests begin kind by kind, then API keys take turns, each by priority and age. The oldest
    request always makes progress.

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
        self._step_time = StepTime(config, self._costs)
        self._is_pipeline = config.num_stages > 1
        self._ahead = config.steps_ahead > 0
        self._max_tokens = config.max_step_tokens
        self.kv = KVCacheManager(num_blocks, config.cache_layout)
        self._running = RunningRequests(config.max_running)
        self._growth = ExpectedGrowth(self.kv)
        self._waiting = WaitingRequests(self.kv, self._growth.batch_outputs, config, clock)
        self._in_progress = PromptsInProgress(self.kv, self._costs)
        self._rows = RowShares(config.max_running, clock)
        self._short_steps = ShortSteps(
            config,
            self._running,
            self._waiting,
            self._rows.num_jobs,
            self._step_time,
            clock,
        )
        # Rows with a window alone read little of a prefix, if any.
        attended_once = not config.disable_cascade_attn and not self.kv.groups[0].windowed
        self._shared = SharedPrefixes(self.kv, self._running, attended_once)
        self._micro_batches = MicroBatches(config, self._step_time, self._shared)
        self._masks = StepMasks(config.model.vocab_size)
        self._constrained = self._step = 0
        self._counted = Usage()

    def usage(self) -> Usage:
        return msgspec.structs.replace(
            self._counted,
            running=len(self._running),
            waiting=len(self._waiting) + len(self._in_progress),
            kv_blocks_used=self.kv.num_blocks - self.kv.num_free,
            kv_blocks_total=self.kv.num_blocks,
            kv_blocks_peak=self.kv.peak,
        )

    def add(self, job: Job, rows: Iterable[Request]) -> None:
        for request in self._rows.open(job, rows):
            self._enter(request)

    @property
    def queued_tokens(self) -> int:
        small, large, batch = self._waiting.queues
        waiting = small.num_tokens + large.num_tokens + batch.num_tokens
        return waiting + sum(self._in_progress.tokens) + sum(self._running.unsubmitted)

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        begun = sum(self._running.unsubmitted) - self._running.unsubmitted[JobKind.LARGE]
        begun += self._in_progress.tokens[JobKind.SMALL]
        return begun + self._waiting.small.tokens_before(priority, key)

    def abort(self, job: Job, row: int | None = None) -> int:
        if row is None:
            return sum(map(self._end, self._rows.close(job)))
        if (request := self._rows.find(job, row)) is None:
            return 0
        self._growth.finished(request)
        return self._end(request)

    def reset_cache(self) -> None:
        self.kv.reset()

    def restart(self, lost: Iterable[DecodeBatch]) -> None:
        for request in chain.from_iterable(batch.requests for batch in lost):
            request.step_lost()
        self._masks.forget()
        self._stop_all()
        self.kv.reset()

    def isolate(self, job: Job | None) -> None:
        if job is not None:
            self._stop_all()
        self._waiting.isolate(job)

    def schedule(self, oldest: DecodeBatch | None) -> DecodeBatch | None:
        batch = DecodeBatch(self._step)
        running, queued, preempted = self._running, self.queued_tokens, self._counted.preemptions
        self._short_steps.decide()
        startable = queued if running.free_slots else sum(running.unsubmitted)
        # More micro-batches of short steps would only keep clients waiting.
        prompt_tokens = 0 if self._short_steps.limited else startable
        self._micro_batches.decide(running.generating, prompt_tokens)
        ahead_of = oldest.step if oldest is not None and self._ahead else -1
        # A row of the oldest step keeps the first stage waiting if that step has stages before it:
        # so it is the choice of last resort until all micro-batches are in flight.
        full = self._step - ahead_of >= self._micro_batches.count
        self._add_decodes(batch, ahead_of if full else -1)
        # Asking once more how much is queued would cost each decode step.
        if queued or self._counted.preemptions > preempted:
            self._add_prompts(batch)
        if not batch.requests and not full:
            self._add_decodes(batch, ahead_of)
        # What is copied is copied first: later steps may write there.
        self.kv.release(batch.sources)
        if not batch.requests:
            return None
        self._step += 1
        return batch

    def depth(self) -> int:
        return self._micro_batches.depth

    def observe(self, work: StepWork, seconds: float) -> None:
        if self._is_pipeline or self._short_steps.traffic.gives_way:
            self._costs.observe(work, seconds)

    def is_open(self) -> bool:
        return self._short_steps.fit(self._max_tokens)

    def num_prompts(self) -> int:
        begun = any(self._running.unsubmitted)
        return len(self._waiting) + len(self._in_progress) + begun

    def build(self, batch: DecodeBatch) -> DecodeStep:
        masked = self._masks.owe(batch) if self._constrained else b""
        return batch.message(masked, self._shared.groups(batch))

    def masks(self, outbox: Outbox) -> Iterator[StepMask]:
        for mask, failed in self._masks.compute():
            for request in failed:
                fail_off_grammar(request, outbox)
                self.abort(request.job)
            yield mask

    def update(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> None:
        self._share(batch)
        if isinstance(output, GenerateOutput):
            self._counted.generated_tokens += num_sampled(batch)
            over = confirm_rows(batch, output, self.kv, outbox)
        else:
            over = confirm_encoded_rows(batch, output, outbox)
        for request in over:
            if request.rewound:
                self._begin_again(request)
                continue
            self._growth.finished(request)
            self._end(request)
            if request.job.ended:
                self.abort(request.job)

    def _share(self, batch: DecodeBatch) -> None:
        """Let others copy the prompts of a step, and resume those that waited for them."""
        for row in range(batch.num_decodes, len(batch.requests)):
            request, stop = batch.requests[row], batch.starts[row] + batch.lens[row]
            if request.status is Status.RUNNING:
                share_computed(self.kv, request, stop)
                self.kv.trim(request.held, request.submitted)
                self._resume(self._in_progress.computed(request, stop))
        if self._in_progress:
            self._resume(self._in_progress.step_over(batch.step))

    def _resume(self, requests: Iterable[Resumed]) -> None:
        for request, shared in requests:
            self._waiting.of(request).put_back(request, shared)

    # Rows that generate.

    def _add_decodes(self, batch: DecodeBatch, oldest_step: int) -> None:
        """Add one token of each generating request that can go on, or of a micro-batch of them."""
        preempted = self._counted.preemptions
        # Only requests without room for their next position need `_grow`.
        ready = [
            request
            for request in self._running.ready(oldest_step)
            if request.submitted < request.room or self._grow(batch, request)
        ]
        for request in list(self._running.prompts):
            if request.submitted == request.room:
                self._grow(batch, request)
        # Now that rows have grown: what is freed for arrivals is left for them.
        self._make_room(ready)
        if self._counted.preemptions > preempted:
            ready = [request for request in ready if request.status is Status.RUNNING]
        first, ready = self._short_steps.split(ready)
        rows = self._micro_batches.share(ready, self._running.contexts, batch.step)
        rows = first + self._short_steps.fitting(rows, first, self._max_tokens)
        batch.add_decodes(self._shared.adjacent(rows[: self._max_tokens]))
        self._running.contexts += batch.num_decodes

    def _grow(self, batch: DecodeBatch, request: Request) -> bool:
        """Hold blocks for the request's next position. False if it is not in this step.

        It preempts none if it is the first to give way, or has an unresolved token and may be
        about to end."""
        if request.status is not Status.RUNNING:
            return False
        index, position = request.room // self.kv.block_size, request.submitted
        while not self.kv.extend(request.held, index, position):
            other = self._running.first_to_give_way
            if request.unresolved or other is request:
                return False
            self._preempt(other)
        request.room += self.kv.block_size
        batch.updates += self.kv.table_updates(request.slot, request.held)
        self._growth.grown(request)
        return True

    def _make_longer(self, batch: DecodeBatch, request: Request, stop: int) -> None:
        """Hold blocks for the request's positions before `stop`, as far as any are free."""
        size, start = self.kv.block_size, request.submitted
        while request.room < stop and self.kv.extend(request.held, request.room // size, start):
            request.room += size
        batch.updates += self.kv.table_updates(request.slot, request.held)

    def _make_room(self, ready: list[Request]) -> None:
        """Preempt rows of later kinds, the last first, for all small rows that the next step could
        begin beside the `ready` ones."""
        running, waiting = self._running, self._waiting.small
        if not waiting or not any(running.rows[JobKind.LARGE :]):
            return
        small = sum([request.kind is JobKind.SMALL for request in ready])
        blocks, tokens = 0, self._max_tokens - small - running.unsubmitted[JobKind.SMALL]
        counted: set[int] = set()  # what several find in the cache is taken once
        for slots, request in enumerate(waiting.arrivals(tokens), 1):
            found = cached_prefix(self.kv, request)
            others = set(found.blocks) - counted
            counted |= others
            blocks += self.kv.missing(found.held, self.kv.blocks_for(len(request.tokens)))
            blocks += self.kv.count(others) - self.kv.num_held(others)
            while len(running.free_slots) < slots or self.kv.num_free < blocks:
                if not any(running.rows[JobKind.LARGE :]):
                    return
                self._preempt(running.first_to_give_way)

    # Chunks of prompts.

    def _add_prompts(self, batch: DecodeBatch) -> None:
        """Add chunks of prompts while slots, blocks and budget last, kind by kind."""
        room, others = self._max_tokens - batch.num_tokens, batch.num_tokens
        budget = PromptBudget(room, self.queued_tokens, self._step_time, others)
        for kind in JobKind:
            if not self._add_prompts_of(kind, batch, budget):
                return

    def _add_prompts_of(self, kind: JobKind, batch: DecodeBatch, budget: PromptBudget) -> bool:
        """Continue prompts, oldest first, then begin waiting requests. False if one has to wait.

        Short requests begin before a prompt of several steps goes on."""
        queue = self._waiting.queues[kind]
        prompts = [request for request in self._running.prompts if request.kind is kind]
        if not prompts and not queue:
            return True
        if kind is JobKind.BATCH:
            count = self._micro_batches.count
            budget.limit(self._waiting.batch.quota(batch.num_decodes, count))
        self._short_steps.limit(budget, batch, kind)
        prompts.sort(key=self._short_steps.gives_way)
        if prompts and (most := budget.left_by(len(prompts[0].tokens) - prompts[0].submitted)):
            self._begin_all(queue, batch, budget, most)
        for request in prompts:
            room = request.submitted < request.room
            if room and self._length(request, request.submitted, budget):
                self._add_chunk(batch, request, budget)
            elif not self._short_steps.gives_way(request):
                return False
        return self._begin_all(queue, batch, budget)

    def _begin_all(
        self, queue: RequestQueue, batch: DecodeBatch, budget: PromptBudget, most: float = math.inf
    ) -> bool:
        """Begin waiting requests of at most `most` tokens in all. False if one has to wait."""
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
            most -= request.own_tokens
            if most < 0 or not self._begin(queue, batch, request):
                return False
            self._add_chunk(batch, request, budget)
        return True

    def _length(self, request: Request, start: int, budget: PromptBudget) -> int:
        """Known tokens from `start` on that this step can take."""
        limited = self._short_steps.gives_way(request)
        return budget.chunk(start, len(request.tokens), limited=limited)

    def _begin(self, queue: RequestQueue, batch: DecodeBatch, request: Request) -> bool:
        """Give a waiting request a slot and its known tokens' blocks. False if too few are free."""
        found = cached_prefix(self.kv, request)
        shared = self.kv.num_held(found.blocks)
        # Rows of later kinds give way to all growth.
        others = any(self._running.rows[request.kind + 1 :])
        if not others and not self._growth.has_room(request, shared):
            return False
        if (prefix := claim_from_cache(self.kv, request, found)) is None:
            return False
        self._running.begin(request, prefix.length, prefix.whole)
        batch.inits.append(request.slot_init())
        request.held, request.room = prefix.held, self.kv.room(prefix.held)
        batch.updates += self.kv.table_updates(request.slot, request.held)
        self._shared.enter(request, prefix.whole)
        for source, own in zip(prefix.sources, prefix.held, strict=False):
            batch.copies += self.kv.copy_of(source, own.ids[prefix.whole])
        batch.sources += prefix.sources
        batch.begun.append(request.job)
        queue.take(request)
        self._growth.begun(request, shared)
        self._in_progress.begin(request)
        if not request.announced:
            self._counted.cached_tokens += request.cached
            self._counted.queried_tokens += len(request.tokens)
        return True

    def _add_chunk(self, batch: DecodeBatch, request: Request, budget: PromptBudget) -> None:
        """Add the next chunk of the request's known tokens, as far as it finds blocks, and register
        the full ones.

        Requests of the same step may read them: each layer writes the keys and values of all rows
        before it attends."""
        start, stop = request.submitted, len(request.tokens)
        # There was time for the first token of a prompt; one behind a cached prefix takes longer.
        length = max(1, self._length(request, start, budget))
        if request.room < start + length:
            self._make_longer(batch, request, start + length)
            length = min(length, request.room - start)
        budget.take(start, length, limited=self._short_steps.gives_way(request))
        batch.add(request, start, length, start + length == stop)
        self._running.chunk_submitted(request, length)
        request.register_blocks(self.kv, start + length)

    # Requests come, wait again, and end.

    def _enter(self, request: Request) -> None:
        self._constrained += request.constrained
        self._waiting.of(request).append(request)

    def _promote(self, request: Request) -> None:
        """Turn a large row into a small one."""
        if request.status is Status.RUNNING:
            self._running.promote(request)
        elif request in self._in_progress:
            self._in_progress.promote(request)
        else:
            self._waiting.of(request).remove(request)
            self._waiting.small.append(request)
        request.kind = JobKind.SMALL

    def _preempt(self, request: Request) -> None:
        self._counted.preemptions += 1
        self._begin_again(request)

    def _stop_all(self) -> None:
        """Have all that run wait, in the order in which they began."""
        for request in reversed([*self._running]):
            self._begin_again(request)

    def _begin_again(self, request: Request) -> None:
        """Have a request wait for a slot. What it has computed is cached."""
        if request.status is Status.WAITING:
            return
        self._release(request)
        request.wait_again()
        self._waiting.of(request).put_back(request, 0)

    def _end(self, request: Request) -> bool:
        """End a request and release its slot and blocks. False if it was over already.

        Steps in flight may still write those blocks: every stage runs steps in submit order, so a
        later step may reuse them at once."""
        if request.status is Status.ENDED:
            return False
        if request.status is Status.RUNNING:
            self._release(request)
        else:
            self._resume(self._in_progress.leave(request))
            if request in self._in_progress:
                self._in_progress.forget(request)
            else:
                self._waiting.of(request).remove(request)
        request.status = Status.ENDED
        self._constrained -= request.constrained
        self._short_steps.traffic.seen(request.job.kind)
        promoted, made = self._rows.ended(request)
        if promoted is not None:
            self._promote(promoted)
        if made is not None:
            self._enter(made)
        return True

    def _release(self, request: Request) -> None:
        self._resume(self._in_progress.leave(request))
        share_text(self.kv, request)
        self._running.leave(request)
        self._growth.left(request)
        self._shared.leave(request)
        for own in request.held:
            self.kv.release(own.held)
        request.held, request.room = [], 0
