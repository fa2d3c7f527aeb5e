"""Batching for encoders: every row runs once, whole, and nothing is kept between steps."""

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar, get_args

import numpy as np
import numpy.typing as npt

from engine_core.loop.jobs import Job, JobKind
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import KeyShare, Usage
from engine_core.schedulers.batches import EncodeBatch, encode_work
from engine_core.schedulers.cost_model import CostModel, starting_coefficients
from engine_core.schedulers.encoder_rows import EncoderRows
from engine_core.schedulers.prompt_budget import StepTime, efficient_tokens
from engine_core.schedulers.results import EncodeOutput, answer_jobs, outputs_of
from engine_core.schedulers.short_steps import STEP_SECONDS, UNLIMITED, OnlineTraffic
from engine_core.schedulers.waiting import PriorityQueue, WaitingQueue
from workers.contract.config import ExecutionConfig
from workers.contract.messages import EncodeStep
from workers.contract.model_config import TokenOutput

_ITEM = 4  # bytes of an int32

IntT = TypeVar("IntT", np.uint8, np.int32)

_MOST_MISFITS = 32


class RowPacker:
    """Fills one step, slice by slice of the jobs' arrays.

    A step has a row of a large job, however much small jobs of its priority ask for.
    """

    def __init__(
        self, budget: float, max_tokens: int, max_rows: int, rows: Mapping[Job, EncoderRows]
    ) -> None:
        """`budget` is in units of `EncoderRows.costs`."""
        self.left, self._tokens_left = budget, max_tokens
        self._rows_left: int = max_rows
        self._misfits = 0
        self._has_large = False
        self.taken: dict[Job, int] = {}  # tokens of each job in the step
        self._rows = rows
        self._parts: list[tuple[Job, range]] = []

    def fill(self, queues: Sequence[PriorityQueue[Job]]) -> None:
        """Give every key the budget left by its weight, then the remainder to the first."""
        if len(queues) > 1:
            whole, total = self.left, sum(queue.key.weight for queue in queues)
            for queue in queues:
                share = min(whole * queue.key.weight / total, self.left)
                others = self.left - share
                self.left = share
                self._fill_from(queue)
                self.left += others
        for queue in queues:
            self._fill_from(queue)

    def fill_one_by_one(self, jobs: Collection[Job], budget: float) -> None:
        """Give one job after the other all that it takes of a new budget, the first one a row at
        least."""
        first = next(iter(jobs))
        least = self._rows[first].next_cost
        self.left, self._misfits = max(budget, least), 0
        for job in jobs if budget >= least else (first,):
            if self._is_over():
                return
            self._add_rows(job, self._rows[job], self.left)

    def _fill_from(self, queue: PriorityQueue[Job]) -> None:
        groups = queue.groups()
        large = None if self._has_large else self._large_behind_small(groups)
        if large is not None:
            small, *groups = groups
            reserved = min(large.next_tokens, self._tokens_left)
            self._tokens_left -= reserved
            self._fill_evenly(small)
            self._tokens_left += reserved
            self.left = max(self.left, large.next_cost)
            self._has_large = True
        for equals in groups:
            self._fill_evenly(equals)

    def _large_behind_small(self, groups: Sequence[Collection[Job]]) -> EncoderRows | None:
        """The large job whose turn it is, if small jobs of its priority come before it."""
        if len(groups) < 2:
            return None
        first, second = (next(iter(group)) for group in groups[:2])
        same = first.message.priority == second.message.priority
        return self._rows[second] if same and second.kind is JobKind.LARGE else None

    def _fill_evenly(self, jobs: Collection[Job]) -> None:
        """Give every job an even share of the budget left, then the remainder to the first.

        Stops once many did not fit: thousands may wait."""
        self._misfits = 0
        for limit in (self.left / len(jobs), self.left):
            for job in jobs:
                if self._is_over():
                    return
                self._add_rows(job, self._rows[job], limit)

    @property
    def work(self) -> StepWork:
        parts = [self._rows[job].lens_of(own) for job, own in self._parts]
        works = [encode_work(np.frombuffer(lens, np.int32)) for lens in parts]
        return StepWork(sum(work.tokens for work in works), sum(work.attended for work in works))

    def _is_over(self) -> bool:
        return self.left <= 0 or not self._rows_left or self._misfits == _MOST_MISFITS

    def _add_rows(self, job: Job, rows: EncoderRows, limit: float) -> None:
        """Add the job's next rows up to `limit`. At least one if it fits the budget left, or the
        step is empty."""
        count = rows.fitting(min(limit, self.left), self._tokens_left, self._rows_left)
        if count == 0:
            if not rows.num_left:
                return
            if self._parts and not rows.fitting(self.left, self._tokens_left, 1):
                self._misfits += 1
                return
            count = 1
        start, stop = rows.cursor, rows.cursor + count
        rows.cursor = stop
        self._rows_left -= count
        self._parts.append((job, range(start, stop)))
        self.left -= rows.costs[stop] - rows.costs[start]
        tokens = rows.offsets[stop] - rows.offsets[start]
        self._tokens_left -= tokens
        self.taken[job] = self.taken.get(job, 0) + tokens

    def batch(self, step: int) -> EncodeBatch:
        jobs = [job for job, _ in self._parts]
        unpooled = [job.message.tokenization.unpooled for job in jobs]
        sources = [self._rows[job] for job in jobs]
        parts = [self._rows[job].part(own) for job, own in self._parts]
        tokens, lens, types, unattended = zip(*parts, strict=True)
        query_lens = np.frombuffer(b"".join(lens), np.int32)
        outputs = [outputs_of(job) for job in jobs]
        requested: dict[TokenOutput, npt.NDArray[np.uint8]] = {
            name: self._of_rows([name in own for own in outputs], np.uint8)
            for name in get_args(TokenOutput)
            if any(name in own for own in outputs)
        }
        message = EncodeStep(
            step=step,
            tokens=b"".join(tokens),
            query_lens=query_lens.tobytes(),
            token_types=_joined(types, tokens, _ITEM),
            requested={name: rows.tobytes() for name, rows in requested.items()},
            unpooled_lens=self._of_rows(unpooled, np.int32).tobytes(),
            unattended_lens=_joined(unattended, lens, 1),
        )
        return EncodeBatch(message, query_lens, self._parts, sources, requested)

    def _of_rows(self, of_jobs: list[int], dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Repeat the number of each job for its rows. Empty if all are 0."""
        if not any(of_jobs):
            return np.empty(0, dtype)
        return np.repeat(np.array(of_jobs, dtype), [len(rows) for _, rows in self._parts])


def _joined(parts: Sequence[bytearray], others: Sequence[bytearray], item: int) -> bytes:
    """Join an array of a step's parts, of which some have none: zeros then. Empty if none has any.
    `others` have `item` times as many bytes."""
    if not any(parts):
        return b""
    both = zip(parts, others, strict=True)
    return b"".join([own or bytes(len(other) // item) for own, other in both])


class StepBudget:
    """The size of a step: all that fit for a single stage, a common time in a pipeline.

    Beside small jobs, or a moment after one, large ones fill steps to 20 ms, or to the tokens that
    are worth a step. The batch band makes way for all jobs of clients like that.
    """

    def __init__(
        self, config: ExecutionConfig, costs: CostModel, clock: Callable[[], float]
    ) -> None:
        # A bidirectional row cannot be cut, so a step holds at least the longest one.
        self.max_tokens = config.largest_step_tokens
        self.max_rows = config.max_step_rows or sys.maxsize
        self._least_tokens = efficient_tokens(config)
        self._costs = costs
        self._step_time, self._is_pipeline = StepTime(config, costs), config.num_stages > 1
        self._waiting = [0] * len(JobKind)  # tokens of each kind
        self.traffic = OnlineTraffic(self._waiting, clock)
        self._limited: int = UNLIMITED
        # Of whole jobs: their tokens, and what these take in units of `EncoderRows.costs`.
        self._whole_tokens = self._whole_costs = 0

    def add(self, job: Job, rows: EncoderRows, known: EncoderRows | None) -> None:
        """Count the next `rows` of a job, behind those `known`. It may turn out to be large, as its
        other rows are taken to be like these."""
        tokens, count = rows.num_tokens, rows.num_rows
        if known is not None:
            tokens, count = tokens + known.num_tokens, count + known.num_rows
        if job.kind is JobKind.SMALL and tokens * job.num_rows > self._short_tokens * count:
            waiting = 0 if known is None else known.tokens_left
            self.submitted(job, waiting)
            job.kind = JobKind.LARGE
            self.submitted(job, -waiting)
        self.traffic.seen(job.kind)
        self._waiting[job.kind] += rows.tokens_left
        if self._is_pipeline or job.is_batch:
            rows.weigh(self._costs.coefficients.attended / self._costs.coefficients.token)
        self._whole_tokens += rows.num_tokens
        self._whole_costs += rows.costs[-1]

    def submitted(self, job: Job, tokens: int) -> None:
        self._waiting[job.kind] -= tokens

    def leave(self, rows: EncoderRows) -> None:
        self._whole_tokens -= rows.num_tokens
        self._whole_costs -= rows.costs[-1]

    def observe(self, work: StepWork, seconds: float) -> None:
        limited = self._limited != UNLIMITED
        if self._is_pipeline or limited or self._waiting[JobKind.BATCH] or not self._costs.measured:
            self._costs.observe(work, seconds)

    def next_step(self) -> float:
        """The size of the next step, in units of `EncoderRows.costs`.

        It is that of its tokens at the average cost of the waiting jobs: so rows of one length fill
        it to the brim."""
        self._limited = self.traffic.first_limited()
        tokens: float = self.max_tokens
        if self._limited == JobKind.LARGE:
            tokens = self._short_tokens
        if not self._is_pipeline:
            return tokens
        token = self._costs.coefficients.token
        tokens = min(tokens, self._step_time.of(self._whole_tokens * token) / token)
        return tokens * self._whole_costs / self._whole_tokens

    def left_for_batch(self, work: StepWork, left: float) -> float:
        """The size for the batch band, behind the `work` of others that leaves `left`."""
        if not self._is_pipeline:
            left = math.inf
        if self._limited == UNLIMITED:
            return left
        seconds = STEP_SECONDS - self._costs.seconds(work)
        return min(left, seconds / self._costs.coefficients.token)

    def is_open(self) -> bool:
        return sum(self._waiting[: self._limited]) < self.max_tokens

    @property
    def _short_tokens(self) -> int:
        tokens = int(STEP_SECONDS / self._costs.coefficients.token)
        return min(max(tokens, self._least_tokens), self.max_tokens)


class PrefillOnlyScheduler:
    """The API keys that wait share a step's budget by their weights.

    A key's jobs of the lowest priority value go first, of these the small ones, and others fill the
    rest of its share. A job without a row for `max_priority_wait` seconds goes before them all, for
    one step. Jobs of one size and priority get even shares; the rest goes to those that waited
    longest for a row. The batch band takes the rest of a step, job by job: a row at least, if the
    step has the tokens for it.
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
        # By job, while it has rows that wait or are not known yet.
        self._rows: dict[Job, EncoderRows] = {}
        self._waiting_rows = self._running_rows = 0
        self._alone: Job | None = None
        self._step = 0

    def usage(self) -> Usage:
        return Usage(running=self._running_rows, waiting=self._waiting_rows)

    def add(self, job: Job, rows: EncoderRows) -> None:
        known, kind = self._rows.get(job), job.kind
        self._budget.add(job, rows, known)
        waits = known is not None and known.num_left > 0
        if waits and job.kind is not kind:
            self._queue_of(job).remove(job)
            waits = False
        if known is None:
            self._rows[job] = rows
        else:
            known.extend(rows)
        self._waiting_rows += rows.num_left
        if not waits:
            self._wait(job)

    def _wait(self, job: Job) -> None:
        """Have a job wait while it has rows that are not submitted."""
        rows = self._rows[job]
        tokens = 0 if rows.cursor else rows.next_tokens
        if job.is_batch:
            self._waiting_batch.add(job, 0, tokens)
        else:
            place = 2 * job.message.priority + (job.kind is JobKind.LARGE)
            self._waiting.add(job, job.message.key, place, tokens)

    @property
    def queued_tokens(self) -> int:
        """Tokens of the first rows of jobs that have not begun: further rows share steps."""
        return self._waiting.num_tokens + self._waiting_batch.num_tokens

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        return self._waiting.tokens_before(2 * priority + 1, key)

    def abort(self, job: Job, row: int | None = None) -> int:
        del row  # an encode job ends only whole
        if (rows := self._rows.get(job)) is not None:
            if rows.num_left:
                self._waiting_rows -= rows.num_left
                self._budget.submitted(job, rows.tokens_left)
                self._queue_of(job).remove(job)
            self._forget(job)
        return job.open_rows

    def reset_cache(self) -> None:
        """Nothing is kept between steps."""

    def restart(self, lost: Iterable[EncodeBatch]) -> None:
        rewound: dict[Job, EncoderRows] = {}
        for batch in lost:
            for (job, own), rows in zip(batch.parts, batch.sources, strict=True):
                if not job.ended and job not in rewound:
                    self.abort(job)
                    rows.cursor = own.start
                    rewound[job] = rows
        self._running_rows = 0
        for job, rows in rewound.items():
            self.add(job, rows)
            self._queue_of(job).hurry(job)

    def isolate(self, job: Job | None) -> None:
        self._alone = job

    def schedule(self, oldest: EncodeBatch | None) -> EncodeBatch | None:
        del oldest  # rows depend on no result of another step
        if not self._waiting_rows:
            return None
        self._waiting.promote_overdue()
        budget = self._budget
        packer = RowPacker(budget.next_step(), budget.max_tokens, budget.max_rows, self._rows)
        if self._alone is None:
            packer.fill(self._waiting.in_turn())
            for jobs in self._waiting_batch.groups():
                left = budget.left_for_batch(packer.work, packer.left)
                packer.fill_one_by_one(jobs, left)
        elif self._alone in self._rows and self._rows[self._alone].num_left:
            packer.fill_one_by_one((self._alone,), packer.left)
        else:
            return None
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

    def num_prompts(self) -> int:
        return self._waiting_rows + 1

    def build(self, batch: EncodeBatch) -> EncodeStep:
        return batch.message

    def masks(self, outbox: Outbox) -> tuple[()]:
        return ()  # nothing is sampled

    def update(self, batch: EncodeBatch, output: EncodeOutput, outbox: Outbox) -> None:
        self._running_rows -= len(batch.lens)
        for kind in {job.kind for job in batch.begun}:
            self._budget.traffic.seen(kind)
        for job in answer_jobs(batch, output, outbox):
            self.abort(job)

    def _submitted(self, job: Job, tokens: int) -> None:
        rows = self._rows[job]
        self._budget.submitted(job, tokens)
        if not job.is_batch:
            self._waiting.given(job, tokens)
        if rows.num_left == 0:
            self._queue_of(job).remove(job)
            if rows.num_rows == job.num_rows:
                self._forget(job)
        elif job.is_batch:
            self._waiting_batch.begun(job)
        else:
            self._waiting.wait_on(job)

    def _queue_of(self, job: Job) -> PriorityQueue[Job] | WaitingQueue[Job]:
        return self._waiting_batch if job.is_batch else self._waiting

    def _forget(self, job: Job) -> None:
        self._budget.leave(self._rows.pop(job))
