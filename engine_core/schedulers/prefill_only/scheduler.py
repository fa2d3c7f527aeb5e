"""Batching for encoders: every row runs once, whole, and nothing is kept between steps.

A job is a struct of arrays; its items are rows, never objects.
"""

import math
import time
from collections.abc import Callable

from engine_core.engine_state import Usage
from engine_core.fair_queuing.key_share import KeyShare
from engine_core.job import Job, JobKind
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.cost_model import CostModel, StepWork, starting_coefficients
from engine_core.schedulers.encoded_rows import EncodeOutput, job_results
from engine_core.schedulers.prefill_only.row_packer import RowPacker
from engine_core.schedulers.prefill_only.step_budget import StepBudget
from engine_core.schedulers.requests.encoder_rows import EncoderRows
from engine_core.schedulers.requests.priority_queue import PriorityQueue
from engine_core.schedulers.requests.waiting import WaitingQueue
from engine_core.schedulers.step_builder import build_encode_step
from workers.contract.config import ExecutionConfig
from workers.contract.messages import EncodeStep


class PrefillOnlyScheduler:
    """The API keys that wait share a step's budget by their weights. A key's jobs of the lowest
    priority value go first; later priorities fill the rest of its share. A job that has had
    no row for `max_priority_wait` seconds goes before them all, for one step.

    Of one priority, small jobs go before large ones, which take what is left: so no job waits for
    many steps of others that need many. Jobs of one size and priority get even shares; what they
    leave goes to those that have waited longest for a row. `StepBudget` says how large a step is.

    Jobs of the batch band take what all others leave, one after the other. A row of them is in
    every step that has the tokens for it.
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
        costs = cost_model or CostModel(starting_coefficients(config.model))
        self._budget = StepBudget(config, costs, clock)
        self._waiting: WaitingQueue[Job] = WaitingQueue(config.max_priority_wait, clock)
        self._waiting_batch: PriorityQueue[Job] = PriorityQueue(math.inf, clock)
        self._rows: dict[Job, EncoderRows] = {}  # of the jobs that wait
        self._waiting_rows = self._running_rows = 0
        self._step = 0

    def usage(self) -> Usage:
        return Usage(running=self._running_rows, waiting=self._waiting_rows)

    def add(self, job: Job, rows: EncoderRows) -> None:
        self._budget.add(job, rows)
        if job.is_batch:
            self._waiting_batch.add(job, 0, rows.first_tokens)
        else:
            # Of one priority small jobs go before large ones.
            place = 2 * job.message.priority + (job.kind is JobKind.LARGE)
            self._waiting.add(job, job.message.key, place, rows.first_tokens)
        self._rows[job] = rows
        self._waiting_rows += rows.num_left

    @property
    def queued_tokens(self) -> int:
        """The first rows of jobs that have not begun: a job's further rows share steps with it."""
        return self._waiting.num_tokens + self._waiting_batch.num_tokens

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        return self._waiting.tokens_before(2 * priority + 1, key)

    def abort(self, job: Job, row: int | None = None) -> int:
        del row  # an encode job ends only whole
        if (rows := self._rows.get(job)) is not None:
            self._waiting_rows -= rows.num_left
            self._budget.submitted(job, rows.num_tokens - rows.offsets[rows.cursor])
            self._leave(job, rows)
        return job.open_rows

    def reset_cache(self) -> None:
        """Nothing is kept between steps."""

    def schedule(self, oldest: EncodeBatch | None) -> EncodeBatch | None:
        del oldest  # rows depend on no result of another step
        if not self._waiting_rows:
            return None
        self._waiting.promote_overdue()
        packer = RowPacker(self._budget.next_step(), self._budget.max_tokens, self._rows)
        packer.fill(self._waiting.in_turn())
        for jobs in self._waiting_batch.groups():
            left = self._budget.left_for_batch(packer.work, packer.left)
            packer.fill_one_by_one(jobs, left)
        batch = packer.batch(self._step)
        self._step += 1
        self._waiting_rows -= len(batch.lens)
        self._running_rows += len(batch.lens)
        for job, tokens in packer.taken.items():
            self._submitted(job, tokens)
        return batch

    def depth(self) -> int:
        return self._depth

    def observe(self, work: StepWork, seconds: float) -> None:
        self._budget.observe(work, seconds)

    def is_open(self) -> bool:
        return self._budget.is_open()

    def has_prompts(self) -> bool:
        return True

    def build(self, batch: EncodeBatch) -> EncodeStep:
        return build_encode_step(batch)

    def masks(self, outbox: Outbox) -> tuple[()]:
        return ()  # nothing is sampled

    def update(self, batch: EncodeBatch, output: EncodeOutput, outbox: Outbox) -> None:
        self._running_rows -= len(batch.lens)
        for kind in {job.kind for job in batch.begun}:
            self._budget.answered(kind)
        for job, num_rows, part in job_results(batch, output):
            if job.ended:
                continue
            if part is not None:
                outbox.encoded(job, part, num_rows)
            else:
                outbox.fail_not_finite(job)
                self.abort(job)

    def _submitted(self, job: Job, tokens: int) -> None:
        """So many tokens of a job are in a step."""
        rows = self._rows[job]
        self._budget.submitted(job, tokens)
        if not job.is_batch:
            self._waiting.given(job, tokens)
        if rows.num_left == 0:
            self._leave(job, rows)
        elif job.is_batch:
            self._waiting_batch.recount(job, 0)
        else:
            self._waiting.wait_on(job)

    def _leave(self, job: Job, rows: EncoderRows) -> None:
        self._queue_of(job).remove(job)
        self._budget.leave(rows)
        del self._rows[job]

    def _queue_of(self, job: Job) -> WaitingQueue[Job] | PriorityQueue[Job]:
        return self._waiting_batch if job.is_batch else self._waiting
