"""How large the next step of a model that only reads is, and how much of it is for whom."""

import math
from collections.abc import Callable

from engine_core.job import Job, JobKind
from engine_core.schedulers.cost_model import CostModel, StepWork
from engine_core.schedulers.prompt_budget import StepTime, efficient_tokens
from engine_core.schedulers.requests.encoder_rows import EncoderRows
from engine_core.schedulers.requests.online_traffic import (
    STEP_SECONDS,
    UNLIMITED,
    OnlineTraffic,
)
from workers.contract.config import ExecutionConfig


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
        self._waiting = [0] * len(JobKind)  # tokens of each kind
        self._traffic = OnlineTraffic(lambda kind: self._waiting[kind] > 0, clock)
        self._limited: int = UNLIMITED
        # Of whole jobs: their tokens, and what these take in units of `EncoderRows.costs`.
        self._whole_tokens = self._whole_costs = 0

    def add(self, job: Job, rows: EncoderRows) -> None:
        """A job waits, from its first row on."""
        if not job.is_batch and rows.num_tokens > self._short_tokens:
            job.kind = JobKind.LARGE
        self._traffic.seen(job.kind)
        self._waiting[job.kind] += rows.num_tokens
        if self._step_time is not None or job.is_batch:
            rows.weigh(self._costs.coefficients.attended / self._costs.coefficients.token)
        self._whole_tokens += rows.num_tokens
        self._whole_costs += rows.costs[-1]

    def submitted(self, job: Job, tokens: int) -> None:
        """So many tokens of a job wait no more."""
        self._waiting[job.kind] -= tokens

    def leave(self, rows: EncoderRows) -> None:
        """Nothing of a job waits any more."""
        self._whole_tokens -= rows.num_tokens
        self._whole_costs -= rows.costs[-1]

    def answered(self, kind: JobKind) -> None:
        """A job of this kind has waited until now."""
        self._traffic.seen(kind)

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of this work has taken the slowest stage `seconds`; 0 if that is unknown."""
        pipelined, limited = self._step_time is not None, self._limited != UNLIMITED
        if pipelined or limited or self._waiting[JobKind.BATCH] or not self._costs.measured:
            self._costs.observe(work, seconds)

    def next_step(self) -> float:
        """How much the next step takes, in units of `EncoderRows.costs`: what so many tokens of the
        jobs that wait take on average, so that rows of one length fill a step to the brim."""
        self._limited = self._traffic.first_limited()
        tokens: float = self.max_tokens
        if self._limited == JobKind.LARGE:
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
        if self._limited == UNLIMITED:
            return left
        seconds = STEP_SECONDS - self._costs.seconds(work)
        return min(left, seconds / self._costs.coefficients.token)

    def is_open(self) -> bool:
        """A job that arrived now could join the next step."""
        return sum(self._waiting[: self._limited]) < self.max_tokens

    @property
    def _short_tokens(self) -> int:
        tokens = int(STEP_SECONDS / self._costs.coefficients.token)
        return min(max(tokens, self._least_tokens), self.max_tokens)
