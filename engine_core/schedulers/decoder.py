"""Continuous batching for generation: chunked prefill, ahead steps, preemption by recompute.

There is no prefill phase and no decode phase: a step computes some of the tokens that are known and
not yet submitted, of any mix of requests (Sarathi-Serve's chunked prefill; vLLM's v1 scheduler).
"""

from collections.abc import Iterator
from typing import Any

from engine_core.engine_state import Usage
from engine_core.job import Job, JobKey
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.confirm import confirm_rows, fail_off_grammar, num_sampled
from engine_core.schedulers.cost_model import CostModel, StepWork, starting_coefficients
from engine_core.schedulers.kv_cache_manager import KVCacheManager
from engine_core.schedulers.masks import StepMasks
from engine_core.schedulers.micro_batches import MicroBatches
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime
from engine_core.schedulers.request import Request, Status
from engine_core.schedulers.step_builder import build_decode_step
from engine_core.schedulers.waiting import WaitingQueue
from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, StepMask


class DecoderScheduler:
    """First come, first served, priority by priority; the oldest request always makes progress.

    Invariants: a running request holds a slot and the blocks of every submitted position, a waiting
    one holds neither. Running requests, then preempted ones, are in the order in which they began;
    requests that have not begun follow by (priority, arrival). Each request alone fits the cache:
    its workflow has checked that.
    """

    def __init__(
        self, config: ExecutionConfig, num_blocks: int, cost_model: CostModel | None = None
    ) -> None:
        self._costs = cost_model or CostModel(starting_coefficients(config.model))
        self._step_time = StepTime(config, self._costs) if config.num_stages > 1 else None
        self._micro_batches = MicroBatches(config, self._step_time)
        self._ahead = config.steps_ahead > 0
        self.kv = KVCacheManager(num_blocks, config.block_size)
        self._preemptions = self._generated_tokens = 0
        self._queried_tokens = self._cached_tokens = 0
        self._max_tokens = config.max_step_tokens
        self._free_slots = list(range(config.max_running - 1, -1, -1))
        # Ordered sets, by when they began: a request leaves from anywhere at no cost. `_prompts`
        # are the running requests with known tokens that are not submitted: no step samples for
        # them yet.
        self._running: dict[Request, None] = {}
        self._prompts: dict[Request, None] = {}
        # The tokens of `_prompts` that are not submitted; the blocks that waiting requests need.
        self._unsubmitted = 0
        self._contexts = 0  # positions submitted of the running requests that are no `_prompts`
        self._waiting: WaitingQueue[Request] = WaitingQueue()
        self._waiting_blocks = 0
        self._jobs: dict[JobKey, list[Request]] = {}
        self._masks = StepMasks(config.model.vocab_size)
        self._constrained = 0
        self._step = 0

    def usage(self) -> Usage:
        return Usage(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=self.kv.num_blocks - self.kv.num_free,
            kv_blocks_total=self.kv.num_blocks,
            queried_tokens=self._queried_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
        )

    def add(self, job: Job, rows: list[Request]) -> None:
        self._jobs[job.key] = rows
        self._constrained += sum(request.matcher is not None for request in rows)
        for request in rows:
            tokens = len(request.tokens)
            self._waiting.add(request, request.priority, tokens)
            self._waiting_blocks += self.kv.blocks_for(tokens)

    def queued_tokens(self, priority: int | None = None) -> int:
        return self._unsubmitted + self._waiting.tokens_before(priority)

    def abort(self, job: Job, row: int | None = None) -> int:
        requests = self._jobs.get(job.key, [])
        if row is not None:
            requests = requests[row : row + 1] if row >= 0 else []
        ended = sum(self._end(request) for request in requests)
        if row is None or ended == job.open_rows:
            self._jobs.pop(job.key, None)
        return ended

    def reset_cache(self) -> None:
        self.kv.reset()

    def schedule(self, oldest: DecodeBatch | None) -> DecodeBatch | None:
        batch = DecodeBatch(self._step)
        startable = self._unsubmitted + (self._waiting.num_tokens if self._free_slots else 0)
        self._micro_batches.decide(len(self._running) - len(self._prompts), startable)
        ahead_of = oldest.step if oldest is not None and self._ahead else -1
        # A row of the oldest step keeps the first stage waiting if that step has stages before it:
        # so it is the choice of last resort until all micro-batches are in flight.
        full = self._step - ahead_of >= self._micro_batches.count
        self._add_decodes(batch, ahead_of if full else -1)
        self._add_prompts(batch)
        if not batch.requests and not full:
            self._add_decodes(batch, ahead_of)
        if not batch.requests:
            return None
        self._step += 1
        return batch

    def depth(self) -> int:
        return self._micro_batches.depth

    def observe(self, work: StepWork, seconds: float) -> None:
        if self._step_time is not None:
            self._costs.observe(work, seconds)

    def is_open(self) -> bool:
        """A slot, a KV block and token budget remain after admitting everything now waiting."""
        budget = self._max_tokens - len(self._running) - self._unsubmitted
        return (
            len(self._waiting) < len(self._free_slots)
            and self._waiting_blocks < self.kv.num_free
            and self._waiting.num_tokens < budget
        )

    def has_prompts(self) -> bool:
        return bool(self._waiting) or self._unsubmitted > 0

    def build(self, batch: DecodeBatch) -> DecodeStep:
        return build_decode_step(batch, self._masks.owe(batch) if self._constrained else b"")

    def masks(self, outbox: Outbox) -> Iterator[StepMask]:
        for mask, failed in self._masks.compute():
            for request in failed:
                fail_off_grammar(request, outbox)
                self.abort(request.job)
            yield mask

    def update(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> None:
        for request in self._confirm(batch, output, outbox):
            self._end(request)
            if request.job.ended:
                self.abort(request.job)

    def _confirm(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> Iterator[Request]:
        """Apply a step's results to its requests; yields those that are over."""
        self._generated_tokens += num_sampled(batch)
        return confirm_rows(batch, output, self.kv, outbox)

    def _add_decodes(self, batch: DecodeBatch, oldest_step: int) -> None:
        """Add one token of each generating request that can go on.

        Its last token is confirmed, or the oldest step samples it and it cannot reach `max_len`. A
        pipeline divides these requests evenly over its micro-batches.
        """
        ready = [
            request
            for request in self._running
            if (last := request.last_step) >= 0
            and (
                not request.unresolved
                or (last == oldest_step and request.submitted + 1 < request.max_len)
            )
        ]
        size = self.kv.block_size
        # Only requests without room for their next position need `_grow`. It may preempt a younger
        # request of this list; that one holds no block any more, so it gets to `_grow` as well.
        ready = [
            request
            for request in ready
            if request.submitted < len(request.blocks) * size or self._grow(batch, request)
        ]
        rows = self._micro_batches.share(ready, self._contexts)[: self._max_tokens]
        self._contexts += len(rows)
        batch.add_decodes(rows)

    def _grow(self, batch: DecodeBatch, request: Request) -> bool:
        """Allocate the block of the request's next position. False if it is not in this step: no
        block is free, or the request was preempted for an older one."""
        if request.status is not Status.RUNNING:
            return False
        while (blocks := self.kv.allocate(1)) is None:
            youngest = next(reversed(self._running))
            # With a token still unresolved, a request never preempts: it may be about to end.
            if request.unresolved or youngest is request:
                return False
            self._preempt(youngest)
        batch.assign_blocks(request, blocks)
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
            self._leave_queue(request)
        request.status = Status.ENDED
        self._constrained -= request.matcher is not None
        return True

    def _preempt(self, request: Request) -> None:
        self._preemptions += 1
        self._release(request)
        request.status = Status.WAITING
        request.submitted = request.registered = 0
        request.last_step = -1
        tokens = len(request.tokens)
        self._waiting.put_back(request, tokens)
        self._waiting_blocks += self.kv.blocks_for(tokens)

    def _leave_queue(self, request: Request) -> None:
        self._waiting_blocks -= self.kv.blocks_for(self._waiting.remove(request))

    def _release(self, request: Request) -> None:
        """Give back the slot and the blocks of a running request."""
        del self._running[request]
        if request in self._prompts:
            del self._prompts[request]
            self._unsubmitted -= len(request.tokens) - request.submitted
        else:
            self._contexts -= request.submitted
        self._free_slots.append(request.slot)
        self.kv.release(request.blocks)
        request.slot = -1
        request.blocks = []

    def _add_prompts(self, batch: DecodeBatch) -> None:
        """Add chunks of prompts that have begun, oldest first; then start waiting requests, in
        order, while slots, blocks and budget last."""
        pending = self._unsubmitted + self._waiting.num_tokens
        others = batch.num_tokens
        budget = PromptBudget(self._max_tokens - others, pending, self._step_time, others)
        for request in list(self._prompts):
            if not budget.chunk(request.submitted, len(request.tokens)):
                return
            self._add_chunk(batch, request, budget)
        while self._waiting and self._free_slots:
            request = next(iter(self._waiting))
            fits = budget.chunk(0, len(request.tokens)) > 0
            if not fits or request.in_flight or not self._claim(batch, request):
                return
            self._leave_queue(request)
            self._add_chunk(batch, request, budget)

    def _claim(self, batch: DecodeBatch, request: Request) -> bool:
        """Give a waiting request a slot and the blocks of all its known tokens.

        The longest cached prefix is shared; the last known token is always computed, because the
        next token is sampled from its logits. False if too few blocks are free.
        """
        kv, known = self.kv, len(request.tokens)
        request.hashes = kv.hash_blocks(request.tokens, request.hashes, request.salt)
        shareable = 0 if request.awaits_scores else (known - 1) // kv.block_size
        shared = kv.match(request.hashes[:shareable])
        kv.touch(shared)
        fresh = kv.allocate(kv.blocks_for(known) - len(shared))
        if fresh is None:
            kv.release(shared)
            return False
        request.slot = self._free_slots.pop()
        request.status = Status.RUNNING
        self._running[request] = self._prompts[request] = None
        batch.inits.append(request.slot_init())
        batch.assign_blocks(request, shared + fresh)
        request.begin(len(shared), kv.block_size)
        batch.begun.append(request.job)
        self._unsubmitted += known - request.submitted
        if not request.announced:
            self._cached_tokens += request.cached
            self._queried_tokens += known
        return True

    def _add_chunk(self, batch: DecodeBatch, request: Request, budget: PromptBudget) -> None:
        """Add the next chunk of the request's known tokens.

        Its full blocks are registered now: any later request, even in the same step, may read them,
        because each layer writes the keys and values of all rows before it attends.
        """
        start = request.submitted
        length = budget.chunk(start, len(request.tokens))
        budget.take(start, length)
        stop = start + length
        samples = stop == len(request.tokens)
        batch.add(request, start, length, samples)
        self._unsubmitted -= length
        if samples:
            del self._prompts[request]
            self._contexts += stop
        request.register_blocks(self.kv, stop)
