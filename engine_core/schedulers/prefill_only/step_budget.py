"""How large the next step of a model that only reads is, and how much of it is for whom."""

import math
from collections.abc import Callable

from engine_core.job import Job
from engine_core.schedulers.cost_model import CostModel, StepWork
from engine_core.schedulers.prompt_budget import StepTime, efficient_tokens
from engine_core.schedulers.requests.encoder_rows import EncoderRows, JobClass
from engine_core.schedulers.requests.online_traffic import STEP_SECONDS, OnlineTraffic
from workers.contract.config import ExecutionConfig

_NONE = JobClass.BATCH + 1


class StepBudget:
    """A single stage's step takes all that fit; the steps of a pipeline are filled to a common
    time: a job is divided by its whole size, never by what is left.

    Beside small jobs of clients, or a moment after one, steps are short: filled to 20 ms, or to as
    many tokens as are worth a step. Who comes then waits for little. Jobs of the batch band make
    way for all jobs of clients like that.
    """

    def __init__(
        self, config: ExecutionConfig, costs: CostModel, clock: Callable[[], float]
    ) -> None:
        """`clock` is in seconds."""
        # A bidirectional row cannot be cut, so a step holds at least the longest one.
        self.max_tokens = config.largest_step_tokens
        self._least_tokens = efficient_tokens(config)
        self._costs = costs
        self._step_time = StepTime(config, costs) if config.num_stages > 1 else None
        self._waiting = [0] * len(JobClass)  # tokens of each class
        waiting = self._waiting
        self._small = OnlineTraffic(lambda: waiting[JobClass.SMALL] > 0, clock)
        self._online = OnlineTraffic(lambda: sum(waiting[: JobClass.BATCH]) > 0, clock)
        self._gives_way: int = _NONE
        # Of whole jobs: their tokens, and what these take in units of `EncoderRows.costs`.
        self._whole_tokens = self._whole_costs = 0

    def add(self, job: Job, rows: EncoderRows) -> None:
        """A job waits, from its first row on."""
        if job.is_batch:
            rows.job_class = JobClass.BATCH
        elif rows.num_tokens > self._short_tokens:
            rows.job_class = JobClass.LARGE
        else:
            self._small.seen()
        self._waiting[rows.job_class] += rows.num_tokens
        if self._step_time is not None or job.is_batch:
            rows.weigh(self._costs.coefficients.attended / self._costs.coefficients.token)
        self._whole_tokens += rows.num_tokens
        self._whole_costs += rows.costs[-1]

    def submitted(self, rows: EncoderRows, tokens: int) -> None:
        """So many tokens of a job wait no more."""
        self._waiting[rows.job_class] -= tokens

    def leave(self, rows: EncoderRows) -> None:
        """Nothing of a job waits any more."""
        self._whole_tokens -= rows.num_tokens
        self._whole_costs -= rows.costs[-1]

    def online_answered(self) -> None:
        """A job of a client has waited until now."""
        self._online.seen()

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work has taken the slowest stage `seconds`; 0 if that is unknown."""
        pipelined, limited = self._step_time is not None, self._gives_way != _NONE
        if pipelined or limited or self._waiting[JobClass.BATCH] or not self._costs.measured:
            self._costs.observe(work, seconds)

    def next_step(self) -> float:
        """How much the next step takes, in units of `EncoderRows.costs`: what so many tokens of the
        jobs that wait take on average, so that rows of one length fill a step to the brim."""
        self._gives_way = self._first_that_gives_way()
        tokens: float = self.max_tokens
        if self._gives_way == JobClass.LARGE:
            tokens = self._short_tokens
        if self._step_time is None:
            return tokens
        token = self._costs.coefficients.token
        tokens = min(tokens, self._step_time.of(self._whole_tokens * token) / token)
        return tokens * self._whole_costs / self._whole_tokens

    def left_for_batch(self, work: StepWork, left: float) -> float:
        """The same for jobs of the batch band, behind the `work` of others, which leaves so much
        of the step. A single stage's step takes all that fit, if it need not be short."""
        if self._step_time is None:
            left = math.inf
        if self._gives_way == _NONE:
            return left
        seconds = STEP_SECONDS - self._costs.seconds(work)
        return min(left, seconds / self._costs.coefficients.token)

    def is_open(self) -> bool:
        """A job that arrived now could join the next step."""
        return sum(self._waiting[: self._gives_way]) < self.max_tokens

    def _first_that_gives_way(self) -> int:
        if self._waiting[JobClass.LARGE] and self._small.is_recent():
            return JobClass.LARGE
        if self._waiting[JobClass.BATCH] and self._online.is_recent():
            return JobClass.BATCH
        return _NONE

    @property
    def _short_tokens(self) -> int:
        tokens = int(STEP_SECONDS / self._costs.coefficients.token)
        return min(max(tokens, self._least_tokens), self.max_tokens)
