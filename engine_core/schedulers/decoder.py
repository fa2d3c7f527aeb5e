"""Continuous batching for generation: chunked prefill, ahead steps, preemption by recompute.

There is no prefill phase and no decode phase: a step computes some of what is known and not yet
submitted, for any mix of requests (Sarathi-Serve's chunked prefill; vLLM's v1 scheduler).
"""

from collections import deque

from engine_core.batches import DecoderBatch
from engine_core.config import EngineConfig
from engine_core.job import Job, JobKey
from engine_core.kv_cache import KVCacheManager
from engine_core.model_input import build_decoder_step
from engine_core.outbox import Outbox
from engine_core.request import Request, Status
from engine_core.schedulers.base import Usage
from engine_core.schedulers.confirm import confirm_rows
from workers.messages import StepInput, StepOutput

_MIN_CHUNK = 32


class DecoderScheduler:
    """First come, first served; the oldest request always makes progress.

    Invariant: a running request holds a slot and the blocks of every submitted position; a waiting
    one holds neither. Admission has made sure that each request alone fits the cache.
    """

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.kv = KVCacheManager(num_blocks, config.block_size)
        self._preemptions = self._cached_tokens = self._generated_tokens = 0
        self._stages = config.num_stages
        self._max_tokens = config.max_step_tokens
        self._free_slots = list(range(config.max_running - 1, -1, -1))
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._jobs: dict[JobKey, list[Request]] = {}
        self._step = 0

    def usage(self) -> Usage:
        return Usage(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=self.kv.num_blocks - self.kv.num_free,
            kv_blocks_total=self.kv.num_blocks,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
        )

    def add(self, job: Job, rows: list[Request]) -> None:
        self._jobs[job.key] = rows
        self._waiting.extend(rows)

    def drop(self, job: Job, row: int | None = None) -> int:
        requests = self._jobs.get(job.key, ())
        if row is None:
            self._jobs.pop(job.key, None)
        return sum(self._end(request) for request in requests if row in (None, request.row))

    def schedule(self, oldest: DecoderBatch | None) -> DecoderBatch | None:
        batch = DecoderBatch(self._step)
        self._add_decodes(batch, oldest.step if oldest is not None else -1)
        budget = self._prefill_budget(batch)
        budget = self._continue_prompts(batch, budget)
        self._start_waiting(batch, budget)
        if not batch.requests:
            return None
        self._step += 1
        return batch

    def build(self, batch: DecoderBatch) -> StepInput:
        return build_decoder_step(batch)

    def update(self, batch: DecoderBatch, output: StepOutput, outbox: Outbox) -> None:
        self._generated_tokens += sum(
            samples and request.status is not Status.ENDED
            for request, samples in zip(batch.requests, batch.samples, strict=True)
        )
        for request in confirm_rows(batch, output, self.kv, outbox):
            self._end(request)
            if request.job.ended:
                self.drop(request.job)

    def _add_decodes(self, batch: DecoderBatch, oldest_step: int) -> None:
        """One token of each generating request, spread evenly over the micro-batches."""
        decoding = [request for request in self._running if request.last_step >= 0]
        limit = min(-(-len(decoding) // self._stages), self._max_tokens)
        ready = [r for r in decoding if self._may_decode(r, oldest_step)]
        if len(ready) > limit:
            ready.sort(key=_last_step)
        for request in ready:
            if len(batch.requests) == limit:
                break
            # An earlier row of this very step may have preempted this one.
            if request.status is Status.RUNNING and self._grow(batch, request):
                batch.add(request, len(request.tokens) - 1 + request.unresolved, 1, samples=True)

    def _may_decode(self, request: Request, oldest_step: int) -> bool:
        """Its last token is confirmed, or on its way in the oldest step and surely not the last."""
        if request.unresolved == 0:
            return True
        if request.unresolved > 1 or request.last_step != oldest_step:
            return False
        return len(request.tokens) + 1 < request.max_len

    def _grow(self, batch: DecoderBatch, request: Request) -> bool:
        """Make room for the request's next position; False if it must sit this step out."""
        position = len(request.tokens) - 1 + request.unresolved
        if position < len(request.blocks) * self.kv.block_size:
            return True
        while (blocks := self.kv.allocate(1)) is None:
            # An ahead row never preempts: it can wait until its turn is certain.
            if request.unresolved or not self._preempt_for(batch, request):
                return False
        batch.assign_blocks(request, blocks)
        return True

    def _preempt_for(self, batch: DecoderBatch, request: Request) -> bool:
        """Send the youngest running request back to wait, unless `request` is the youngest."""
        held = set(map(id, batch.requests))
        for victim in reversed(self._running):
            if victim is request:
                break
            if id(victim) not in held:
                self._preempt(victim)
                return True
        return False

    def _end(self, request: Request) -> bool:
        """The request is over: give its slot and blocks back. False if it was over already.

        Steps in flight may still write those blocks: every stage runs steps in submit order, so a
        later step may reuse them at once.
        """
        if request.status is Status.ENDED:
            return False
        if request.status is Status.RUNNING:
            self._vacate(request)
        else:
            self._waiting.remove(request)
        request.status = Status.ENDED
        return True

    def _preempt(self, request: Request) -> None:
        self._preemptions += 1
        self._vacate(request)
        request.status = Status.WAITING
        request.submitted = request.registered = 0
        request.last_step = -1
        self._waiting.appendleft(request)

    def _vacate(self, request: Request) -> None:
        self._running.remove(request)
        self._free_slots.append(request.slot)
        self.kv.release(request.blocks)
        request.slot = -1
        request.blocks = []

    def _prefill_budget(self, batch: DecoderBatch) -> int:
        """Prompt tokens of this step. A pipeline meters them, so that its micro-batches weigh the
        same (gLLM's token throttling); one stage takes all that fits."""
        budget = self._max_tokens - batch.num_tokens
        if self._stages == 1:
            return budget
        pending = sum(max(0, len(r.tokens) - r.submitted) for r in self._running if r.last_step < 0)
        for request in self._waiting:
            pending += len(request.tokens)
            if pending >= self._stages * budget:
                return budget
        return min(budget, max(_MIN_CHUNK, -(-pending // self._stages)))

    def _continue_prompts(self, batch: DecoderBatch, budget: int) -> int:
        """Further chunks of prompts that have begun, oldest first. Returns what is left."""
        for request in self._running:
            if budget == 0:
                break
            # Generating requests (a sampled token in this residency) are not prompts.
            if request.last_step < 0:
                budget -= self._add_chunk(batch, request, budget)
        return budget

    def _start_waiting(self, batch: DecoderBatch, budget: int) -> None:
        """Let waiting requests in, in order, while slots, blocks and budget last."""
        while self._waiting and self._free_slots and budget > 0:
            request = self._waiting[0]
            if request.in_flight or not self._claim(batch, request):
                return
            self._waiting.popleft()
            budget -= self._add_chunk(batch, request, budget)

    def _claim(self, batch: DecoderBatch, request: Request) -> bool:
        """Give a waiting request a slot and the blocks of all its known tokens.

        The longest cached prefix is shared; the last known token is always computed, because its
        logits are what the request is after.
        """
        kv, known = self.kv, len(request.tokens)
        request.hashes = kv.hash_blocks(request.tokens, request.hashes)
        shareable = 0 if request.wants_scores else (known - 1) // kv.block_size
        shared = kv.match(request.hashes[:shareable])
        kv.hold(shared)
        fresh = kv.allocate(kv.blocks_for(known) - len(shared))
        if fresh is None:
            kv.release(shared)
            return False
        request.slot = self._free_slots.pop()
        request.status = Status.RUNNING
        self._running.append(request)
        batch.inits.append(request.slot_init())
        batch.assign_blocks(request, shared + fresh)
        request.submitted = len(shared) * kv.block_size
        request.registered = len(shared)
        request.resident_from = known
        request.scores_from = request.scored
        if not request.announced:
            request.cached = request.submitted
            self._cached_tokens += request.cached
        return True

    def _add_chunk(self, batch: DecoderBatch, request: Request, budget: int) -> int:
        """The next chunk of the request's known tokens; returns its length.

        Its full blocks get their names now: any later row, even of this very step, may read them,
        because each layer writes every row's keys and values before it attends.
        """
        start = request.submitted
        length = min(len(request.tokens) - start, budget)
        if length <= 0:
            return 0
        stop = start + length
        batch.add(request, start, length, samples=stop == len(request.tokens))
        while request.registered < stop // self.kv.block_size:
            index = request.registered
            self.kv.register(request.blocks[index], request.hashes[index])
            request.registered += 1
        return length


def _last_step(request: Request) -> int:
    return request.last_step
