"""Batching for encoders: every row runs once, whole, and nothing is kept between steps.

A job is a struct of arrays; its items are rows, never objects.
"""

import math
import time
from collections.abc import Callable

from engine_core.engine_state import Usage
from engine_core.fair_queuing.key_share import KeyShare
from engine_core.job import Job
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.cost_model import CostModel, StepWork, starting_coefficients
from engine_core.schedulers.encoded_rows import EncodeOutput, job_results
from engine_core.schedulers.prefill_only.row_packer import RowPacker
from engine_core.schedulers.prompt_budget import StepTime
from engine_core.schedulers.requests.encoder_rows import EncoderRows
from engine_core.schedulers.requests.online_traffic import STEP_SECONDS, OnlineTraffic
from engine_core.schedulers.requests.priority_queue import PriorityQueue
from engine_core.schedulers.requests.waiting import WaitingQueue
from engine_core.schedulers.step_builder import build_encode_step
from workers.contract.config import ExecutionConfig
from workers.contract.messages import EncodeStep


class PrefillOnlyScheduler:
    """The API keys that wait share a step's budget by their weights. A key's jobs of the lowest
    priority value go first; later priorities fill the rest of its share. A job that has had
    no row for `max_priority_wait` seconds goes before them all, for one step.

    Jobs of one priority get even shares of the budget; what they leave goes to the earliest. So a
    large job never delays a small one by more than a step, and never starves. The steps of a
    pipeline are filled to a common time: a job is divided by its whole size, never by what is left.

    Jobs of the batch class take what all others leave, one after the other; beside online traffic,
    what fills a short step. A row of them is in every step that has the tokens for it.
    """

    def __init__(
        self,
        config: ExecutionConfig,
        num_blocks: int,
        clock: Callable[[], float] = time.monotonic,
        cost_model: CostModel | None = None,
    ) -> None:
        del num_blocks  # an encoder has no KV cache
        self._depth = config.num_stages + config.steps_ahead
        self._costs = cost_model or CostModel(starting_coefficients(config.model))
        self._step_time = StepTime(config, self._costs) if config.num_stages > 1 else None
        # A bidirectional row cannot be cut, so a step holds at least the longest one.
        self._max_tokens = config.largest_step_tokens
        self._waiting: WaitingQueue[Job] = WaitingQueue(config.max_priority_wait, clock)
        self._waiting_batch: PriorityQueue[Job] = PriorityQueue(math.inf, clock)
        self._rows: dict[Job, EncoderRows] = {}  # of the jobs that wait
        self._waiting_rows = 0
        self._waiting_tokens = self._batch_tokens = 0  # of all jobs; of the batch class
        self._online = OnlineTraffic(lambda: self._waiting_tokens > self._batch_tokens, clock)
        self._limited = False
        # Of whole jobs: their tokens, and what these take in units of `EncoderRows.costs`.
        self._whole_tokens = self._whole_costs = 0
        self._running_rows = 0
        self._step = 0

    def usage(self) -> Usage:
        return Usage(running=self._running_rows, waiting=self._waiting_rows)

    def add(self, job: Job, rows: EncoderRows) -> None:
        if job.is_batch:
            self._waiting_batch.add(job, 0, rows.first_tokens)
        else:
            message = job.message
            self._waiting.add(job, message.key, message.priority, rows.first_tokens)
        self._rows[job] = rows
        self._waiting_rows += rows.num_left
        self._waiting_tokens += len(rows.tokens)
        self._batch_tokens += len(rows.tokens) * job.is_batch
        if self._step_time is not None or job.is_batch:
            rows.weigh(self._costs.coefficients.attended / self._costs.coefficients.token)
        self._whole_tokens += rows.offsets[-1]
        self._whole_costs += rows.costs[-1]

    @property
    def queued_tokens(self) -> int:
        """The first rows of jobs that have not begun: a job's further rows share steps with it."""
        return self._waiting.num_tokens + self._waiting_batch.num_tokens

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        return self._waiting.tokens_before(priority, key)

    def abort(self, job: Job, row: int | None = None) -> int:
        del row  # an encode job ends only whole
        if (rows := self._rows.pop(job, None)) is not None:
            self._queue_of(job).remove(job)
            self._waiting_rows -= rows.num_left
            left = rows.offsets[-1] - rows.offsets[rows.cursor]
            self._waiting_tokens -= left
            self._batch_tokens -= left * job.is_batch
            self._leave(rows)
        return job.open_rows

    def reset_cache(self) -> None:
        """Nothing is kept between steps."""

    def schedule(self, oldest: EncodeBatch | None) -> EncodeBatch | None:
        del oldest  # rows depend on no result of another step
        if not self._waiting_rows:
            return None
        self._waiting.promote_overdue()
        packer = RowPacker(self._budget(), self._max_tokens, self._rows)
        self._limited = self._batch_tokens > 0 and self._online.is_recent()
        packer.fill(self._waiting.in_turn())
        for jobs in self._waiting_batch.groups():
            packer.fill_one_by_one(jobs, self._left_for_batch(packer))
        batch = packer.batch(self._step)
        self._step += 1
        self._account(batch)
        return batch

    def depth(self) -> int:
        return self._depth

    def observe(self, work: StepWork, seconds: float) -> None:
        if self._step_time is not None or self._batch_tokens:
            self._costs.observe(work, seconds)

    def is_open(self) -> bool:
        batch = self._batch_tokens if self._limited else 0
        return self._waiting_tokens - batch < self._max_tokens

    def has_prompts(self) -> bool:
        return True

    def build(self, batch: EncodeBatch) -> EncodeStep:
        return build_encode_step(batch)

    def masks(self, outbox: Outbox) -> tuple[()]:
        return ()  # nothing is sampled

    def update(self, batch: EncodeBatch, output: EncodeOutput, outbox: Outbox) -> None:
        self._running_rows -= len(batch.lens)
        if not all(job.is_batch for job in batch.begun):
            self._online.seen()
        for job, num_rows, part in job_results(batch, output):
            if job.ended:
                continue
            if part is not None:
                outbox.encoded(job, part, num_rows)
            else:
                outbox.fail_not_finite(job)
                self.abort(job)

    def _budget(self) -> float:
        """How much the next step takes, in units of `EncoderRows.costs`: what so many tokens of the
        jobs that wait take on average, so that rows of one length fill a step to the brim."""
        if self._step_time is None:
            return self._max_tokens
        token = self._costs.coefficients.token
        tokens = min(self._max_tokens, self._step_time.of(self._whole_tokens * token) / token)
        return tokens * self._whole_costs / self._whole_tokens

    def _left_for_batch(self, packer: RowPacker) -> float:
        """The same for jobs of the batch class, behind what the packer has of others. A single
        stage's step takes all that fit, if there is no limit."""
        left = math.inf if self._step_time is None else packer.left
        if not self._limited:
            return left
        seconds = STEP_SECONDS - self._costs.seconds(packer.work)
        return min(left, seconds / self._costs.coefficients.token)

    def _leave(self, rows: EncoderRows) -> None:
        self._whole_tokens -= rows.offsets[-1]
        self._whole_costs -= rows.costs[-1]

    def _account(self, batch: EncodeBatch) -> None:
        self._waiting_rows -= len(batch.lens)
        self._running_rows += len(batch.lens)
        self._waiting_tokens -= len(batch.tokens)
        for job, numbers in batch.parts:
            if (rows := self._rows.get(job)) is None:
                continue
            tokens = rows.tokens_of(numbers)
            self._batch_tokens -= tokens * job.is_batch
            queue = self._queue_of(job)
            if queue is self._waiting:
                self._waiting.given(job, tokens)
            if rows.num_left == 0:
                queue.remove(job)
                self._leave(rows)
                del self._rows[job]
                continue
            queue.wait_anew(job, job.message.priority)
            if numbers[0] == 0:
                queue.recount(job, 0)

    def _queue_of(self, job: Job) -> WaitingQueue[Job] | PriorityQueue[Job]:
        return self._waiting_batch if job.is_batch else self._waiting
