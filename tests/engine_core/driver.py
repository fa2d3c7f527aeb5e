"""A decoder's scheduler with a pipeline of simulated stages, iterated by hand."""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.messages import Failed, GenerateJob, KeyShare, RowOutput, SamplingParams
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import Coefficients, CostModel
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.queues import BatchQueue
from engine_core.schedulers.request import Request
from engine_core.schedulers.waiting import ItemT, WaitingQueue
from engine_core.structured.matcher import Matcher
from engine_core.workflows.base import Scheduler
from tests.engine_core.configs import execution_config
from tests.engine_core.integrity import check_blocks
from tests.engine_core.simulated_model import SimulatedModel, SimulatedPipeline, reference
from tests.engine_core.windowed_model import WindowedModel, windowed_reference


def hope(scheduler: Scheduler) -> None:
    """Let requests begin as soon as they find blocks, whatever those that run will need."""
    assert isinstance(scheduler, DecoderScheduler)
    scheduler._growth.has_room = lambda request, shared: True


class Driver:
    """A scheduler with a pipeline of simulated stages, iterated by hand."""

    def __init__(
        self,
        num_blocks: int,
        stages: int = 1,
        costs: Coefficients | None = None,
        **options: Any,
    ) -> None:
        """Steps take what `costs` say, and the scheduler knows it; without them no time passes."""
        config = execution_config(num_stages=stages, **options)
        self.max_depth = config.max_depth
        self.now = 0.0
        self.costs = CostModel(costs or Coefficients(0.0, 0.0, 0.0, 0.0))
        self.scheduler = DecoderScheduler(
            config, num_blocks, lambda: self.now, self.costs if costs else None
        )
        self.layout = config.cache_layout
        model = SimulatedModel(num_blocks, config.block_size, config.max_running)
        if self.layout.windowed:
            model = WindowedModel(num_blocks, self.layout, config.max_running)
        self.pipeline = SimulatedPipeline(model)
        self.batches: deque[DecodeBatch] = deque()
        self.ended: list[Job] = []
        self.outbox = Outbox(self.ended.append)
        self.outputs: dict[int, list[RowOutput]] = {}
        self.failed: list[Failed] = []
        self.submitted: list[DecodeBatch] = []

    def add(self, job_id: int, prompt: list[int], max_tokens: int, **options: Any) -> Job:
        """A job of one prompt."""
        return self.add_job(job_id, [prompt], max_tokens, **options)

    def add_each(
        self, prompts: Iterable[list[int]], max_tokens: int, **options: Any
    ) -> dict[int, list[int]]:
        """Jobs 0, 1 … of a prompt each. Returns the prompts."""
        by_job = dict(enumerate(prompts))
        for job, prompt in by_job.items():
            self.add(job, prompt, max_tokens, **options)
        return by_job

    def add_job(
        self,
        job_id: int,
        prompts: Sequence[list[int]],
        max_tokens: int,
        salt: str = "",
        priority: int = 0,
        batch: bool = False,
        key: int = 0,
        share: int = sys.maxsize,
        *,
        matcher: Callable[[], Matcher | None] = lambda: None,
        **params: Any,
    ) -> Job:
        """A job of a row for each prompt, at most `share` of which exist at a time."""
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        message = GenerateJob(
            job_id,
            params=sampling,
            key=KeyShare(key),
            batch=batch,
            cache_salt=salt,
            priority=priority,
        )
        job = Job(b"client", message, len(prompts), 0, share)
        rows = (
            Request(
                job,
                row,
                sampling,
                array("i", prompt),
                max_len=len(prompt) + max_tokens,
                seed=0,
                matcher=matcher(),
            )
            for row, prompt in enumerate(prompts)
        )
        self.scheduler.add(job, rows)
        return job

    @property
    def batch_queue(self) -> BatchQueue:
        """That of the scheduler's batch band."""
        return self.scheduler._waiting.batch

    @property
    def running_batch(self) -> list[int]:
        """The jobs of the batch band's rows that run, as they began."""
        return [each.job.message.id for each in self.scheduler._running if each.job.is_batch]

    def submit(self) -> bool:
        assert len(self.batches) <= self.max_depth
        if len(self.batches) >= self.scheduler.depth():
            return False
        batch = self.scheduler.schedule(self.batches[0] if self.batches else None)
        if batch is None:
            return False
        self.pipeline.submit(self.scheduler.build(batch))
        self._send_masks()
        self.batches.append(batch)
        assert all(length > 0 for length in batch.lens), "every row computes something"
        self.submitted.append(batch)
        return True

    def finish(self) -> None:
        batch = self.batches.popleft()
        self.now += self.costs.seconds(batch.work)
        self.scheduler.update(batch, self.pipeline.next_result(), self.outbox)
        self._send_masks()
        for _, outputs in self.outbox.take():
            self.failed += outputs.failed
            for row in outputs.rows:
                self.outputs.setdefault(row.job, []).append(row)

    def _send_masks(self) -> None:
        """Where the core sends them. `SimulatedPipeline` checks that each comes once, in time."""
        for mask in self.scheduler.masks(self.outbox):
            self.pipeline.submit_mask(mask)

    def step(self) -> DecodeBatch:
        """The next step that can be submitted."""
        while not self.submit():
            self.finish()
        return self.submitted[-1]

    def fill(self) -> None:
        while self.submit():
            pass

    def turn(self) -> None:
        """Submit all that can be, and finish a step."""
        self.fill()
        self.finish()

    def drain(self) -> None:
        """Let all jobs end, which leave nothing behind."""
        self.fill()
        while self.batches:
            self.finish()
            self.fill()
        self.assert_idle()

    def text(self, job_id: int, row: int | None = None) -> list[int]:
        """The tokens of a job, or of one row of it."""
        outputs = self.outputs.get(job_id, [])
        return [each.token for each in outputs if row in (None, each.row) and each.token >= 0]

    def finishes(self, job_id: int) -> list[str]:
        """Why the rows of a job have ended, in that order."""
        return [row.finish for row in self.outputs.get(job_id, []) if row.finish is not None]

    def assert_texts(self, prompts: dict[int, list[int]], max_tokens: int) -> None:
        """Jobs of these prompts get their texts, and end once each."""
        self.drain()
        for job, prompt in prompts.items():
            assert self.text(job) == self.reference(prompt, max_tokens)
            assert len(self.finishes(job)) == 1

    def assert_ends(self, expected: dict[int, list[int]], aborted: set[int]) -> None:
        """Jobs have got their texts, and ended once each. If `aborted`, they have a beginning of
        theirs, and may have no end."""
        for number, text in expected.items():
            told, finishes = self.text(number), self.finishes(number)
            assert told == (text[: len(told)] if number in aborted else text)
            assert len(finishes) == 1 or (number in aborted and not finishes)

    def reference(self, prompt: list[int], max_tokens: int) -> list[int]:
        """The text that a request must get."""
        if self.layout.windowed:
            return windowed_reference(prompt, max_tokens, self.layout)
        return reference(prompt, max_tokens)

    def assert_ordered(self) -> None:
        """Running requests, then waiting ones, are in order of arrival: no younger request ever
        overtakes an older one."""
        requests = (*self.scheduler._running, *self.scheduler._waiting.small)
        order = [request.job.message.id for request in requests]
        assert order == sorted(order)

    def assert_sums(self) -> None:
        """The scheduler's running sums equal the sums over its requests. A waiting request counts
        the tokens that it had when it was queued: two more may be confirmed after a preemption."""
        running, waiting = self.scheduler._running, self.scheduler._waiting.small
        rows, unsubmitted = [0, 0, 0], [0, 0, 0]
        for request in running:
            rows[request.kind] += 1
        for request in running.prompts:
            unsubmitted[request.kind] += len(request.tokens) - request.submitted
        assert (running.rows, running.unsubmitted) == (rows, unsubmitted)
        generating = [r.submitted for r in running if r not in running.prompts]
        assert running.contexts == sum(generating)
        counted = [counted_tokens(waiting, request) for request in waiting]
        assert waiting.num_tokens == sum(counted)
        for request, tokens in zip(waiting, counted, strict=True):
            assert 0 <= len(request.tokens) - tokens <= 2

    def assert_idle(self) -> None:
        usage = self.scheduler.usage()
        assert (usage.running, usage.waiting, usage.kv_blocks_used) == (0, 0, 0)
        queue = self.batch_queue
        assert (queue.num_tokens, len(queue)) == (0, 0)
        growth = self.scheduler._growth
        assert [growth._tokens, growth._shared, growth._lacking] == [{}, {}, {}]
        assert growth._growth == 0
        progress = self.scheduler._in_progress
        assert [progress._entries, progress._sorted, progress._waiting] == [{}, {}, {}]
        assert [progress._leaders, progress._for_one_step] == [{}, {}]
        assert progress.tokens == [0, 0, 0]
        assert not self.scheduler._shared
        self.assert_sums()
        check_blocks(self.scheduler.kv)


def counted_tokens(queue: WaitingQueue[ItemT], item: ItemT) -> int:
    """The tokens that an item counts in the sum of those that wait."""
    if item in queue._preempted:
        return queue._preempted[item]
    return queue._queue_of[item].tokens_of(item)


def jobs_in(batch: DecodeBatch) -> list[int]:
    """The jobs of a step's rows."""
    return [request.job.message.id for request in batch.requests]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, length).tolist()
