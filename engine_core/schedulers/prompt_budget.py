"""How much of the prompts one step takes: in a pipeline, as much as fills a common time.

Stages whose steps take equal times never wait for each other. A count of tokens does not make steps
equal: a token late in a long prompt attends to all before it.
"""

import math

from engine_core.schedulers.cost_model import CostModel
from workers.contract.config import ExecutionConfig

_STEPS_A_STAGE = 8
"""What waits is divided into at most so many steps a stage. With P stages, filling and draining the
pipeline takes P - 1 steps; out of 8 P that is less than an eighth."""

_MIN_CHUNK = 512
"""Tokens that are worth a step: a GPU computes fewer at a lower rate."""

_GPU_TOKENS = 1024
"""A GPU computes a matrix product in waves of tiles, of which the last is as long as a full one. A
multiple of this many rows fills 97 % of the waves on GPUs with 132 processors; 17 tiles of 128 rows
fill 69 % where the product is 4,096 wide."""

_LAST_CHUNK = _MIN_CHUNK // 2
"""So few tokens at a prompt's end join the chunk before them."""


class StepTime:
    """The common time of a pipeline's steps, in seconds above a step's fixed cost."""

    def __init__(self, config: ExecutionConfig, cost_model: CostModel) -> None:
        self.cost_model = cost_model
        self._stages = config.num_stages
        # A decoder's steps of prompts are half as large as they may be, and smaller with many
        # stages: the closer they come to steps of decode rows alone, the less do stages wait for
        # each other where one kind follows the other.
        parts = max(2, config.num_stages / 2) if config.task == "generate" else 1
        self._most_tokens = config.max_step_tokens / parts
        self._least_tokens = min(_MIN_CHUNK, config.max_step_tokens)
        self._granularity = 1 if config.device_type == "cpu" else _GPU_TOKENS

    def of(self, work: float) -> float:
        """The prompts' part of each step while prompts of `work` seconds are computed.

        k steps take the slowest stage (k + P - 1) · (fixed cost + work / k) from the first one's
        start to the last one's end: the least with k = √((P - 1) · work / fixed cost). So many are
        not exceeded either.
        """
        costs = self.cost_model
        cheapest = math.sqrt(work * costs.coefficients.step / (self._stages - 1))
        even = max(work / (_STEPS_A_STAGE * self._stages), cheapest)
        most = costs.coefficients.token * self._most_tokens
        return max(min(even, most), costs.chunk_seconds(0, self._least_tokens))

    def full_waves(self, tokens: int) -> int:
        """About as many tokens of a step as a device computes efficiently."""
        size = self._granularity
        return tokens if tokens < size else round(tokens / size) * size

    def rounds(self, tokens: int) -> float:
        """How often prompts of so many tokens fill every stage."""
        work = self.cost_model.coefficients.token * tokens
        return work / (self.of(work) * self._stages)


class PromptBudget:
    """What a step may still take of prompts: a number of tokens, and a time."""

    def __init__(
        self, tokens: int, pending: int, step_time: StepTime | None, others: int = 0
    ) -> None:
        """At most `tokens` beside `others`, while `pending` tokens wait. With a single stage there
        is no `step_time`: the step takes all that fit."""
        self._tokens, self._others = tokens, others
        self._time = step_time
        self._taken = False
        self._seconds = math.inf
        self._spent = 0.0
        if step_time is not None:
            self._seconds = step_time.of(step_time.cost_model.coefficients.token * pending)

    def chunk(self, start: int, stop: int) -> int:
        """How many of the positions [start, stop) that are left of a prompt this step takes.

        A prompt of which this is above 0 still has a chunk if its first positions turn out to be
        cached.
        """
        left = stop - start
        if self._time is None:
            return min(left, self._tokens)
        costs = self._time.cost_model
        # A prompt is cut by its whole work, never by what is left of it.
        self._seconds = max(self._seconds, self._time.of(costs.chunk_seconds(0, stop)))
        room = self._seconds - self._spent
        if self._taken and (room <= 0 or self._tokens < min(left, _MIN_CHUNK)):
            return 0
        length = costs.chunk_length(start, room)
        if left <= length + _LAST_CHUNK:
            return min(left, self._tokens)
        if self._taken and room < costs.chunk_seconds(0, _MIN_CHUNK):
            return 0
        length = self._time.full_waves(self._others + length) - self._others
        return min(max(length, _MIN_CHUNK), self._tokens)

    def take(self, start: int, length: int) -> None:
        """The step takes `length` positions of a prompt from `start` on."""
        self._tokens -= length
        self._others += length
        self._taken = True
        if self._time is not None:
            self._spent += self._time.cost_model.chunk_seconds(start, length)
