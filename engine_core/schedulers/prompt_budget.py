"""How much of the prompts one step takes: in a pipeline, as much as fills a common time.

Stages whose steps take equal times never wait for each other. A count of tokens does not make steps
equal: a token late in a long prompt attends to all before it.
"""

import math

from engine_core.schedulers.cost_model import CostModel
from workers.contract.config import ExecutionConfig

_STEPS_A_STAGE = 12
"""The most steps a stage into which prompts are divided. Filling and draining P stages takes P - 1
steps, less than a twelfth of 12 P."""

_LEAST_TOKENS = {"cpu": 512, "cuda": 1024}
"""Tokens that are worth a step: smaller ones are computed at a lower rate. A layer of an 8B model
takes an H200 371 µs for 512, 604 for 1,024, 1,281 for 2,048."""

_MULTIPLE = {"cpu": 1, "cuda": 256}
"""Rows of a tile of matrix products: the last one takes as long as a full one. An H200 is as fast
with 2,048 tokens as with 2,560, and a twelfth slower with 2,432."""

_MIN_CHUNK = 512
"""Tokens of a prompt that are worth a chunk beside other work of the step."""

_LAST_CHUNK = _MIN_CHUNK // 2
"""So few tokens at a prompt's end join the chunk before them."""

_LEFT_BY_LONG_PROMPTS = 8
"""A prompt of several steps leaves one in so many of a step's tokens."""

_LEAST_OF_ALL = 32
"""Tokens that a step takes of limited prompts even if no time is left."""


def efficient_tokens(config: ExecutionConfig) -> int:
    """The least tokens of a step that are worth its fixed cost."""
    return min(_LEAST_TOKENS[config.device_type], config.max_step_tokens)


class StepTime:
    """The common time of a pipeline's steps, in seconds above a step's fixed cost."""

    def __init__(self, config: ExecutionConfig, cost_model: CostModel) -> None:
        self.cost_model = cost_model
        self._stages = config.num_stages
        # A generator's steps of prompts come closer to those of decode rows alone, with many stages
        # even more: so stages wait less for each other where one kind follows the other.
        self._decodes = config.model.has_kv_cache
        parts = max(2, config.num_stages / 2) if self._decodes else 1
        self._most_tokens = config.max_step_tokens / parts
        self._least_tokens = efficient_tokens(config)
        self.tile = _MULTIPLE[config.device_type]

    def of(self, work: float) -> float:
        """The prompts' part of each step while prompts of `work` seconds are computed.

        Infinite with a single stage: it takes all that fit. k steps of an encoder together take
        (k + P - 1) · (fixed cost + work / k), which is least at √((P - 1) · work / fixed cost). A
        decoder's fixed cost is that of reading weights, which steps of prompts hide.
        """
        if self._stages == 1:
            return math.inf
        costs = self.cost_model
        even = work / (_STEPS_A_STAGE * self._stages)
        if not self._decodes:
            even = max(even, math.sqrt(work * costs.coefficients.step / (self._stages - 1)))
        most = costs.coefficients.token * self._most_tokens
        return max(min(even, most), costs.chunk_seconds(0, self._least_tokens))


class PromptBudget:
    """The tokens and the time that a step may still take of prompts."""

    def __init__(self, tokens: int, pending: int, step_time: StepTime, others: int = 0) -> None:
        """At most `tokens` beside `others`, while `pending` tokens wait."""
        self._tokens, self._others = tokens, others
        self._time, self._costs = step_time, step_time.cost_model
        self._seconds = step_time.of(self._costs.coefficients.token * pending)
        self._spent = 0.0
        self._taken = False
        # Of prompts that are limited: seconds and tokens left, tokens of each that begins.
        self._seconds_left = 0.0
        self._least, self._each = _LEAST_OF_ALL, 0

    def left_by(self, tokens: int) -> int:
        """Tokens of the step that a prompt with `tokens` left leaves to short ones behind it. None
        if it ends in this step, or in a pipeline."""
        if self._seconds < math.inf or tokens <= self._tokens:
            return 0
        return self._tokens // _LEFT_BY_LONG_PROMPTS

    def limit(self, tokens: float) -> None:
        self._tokens = int(min(self._tokens, tokens))

    def within(self, seconds: float, each: int) -> None:
        """Give limited prompts these seconds, and `each` of every one that begins in any case."""
        self._seconds_left, self._each = max(0.0, seconds), each

    def chunk(self, start: int, stop: int, *, limited: bool = False) -> int:
        """How many of a prompt's positions [start, stop) this step takes."""
        length = self._even_chunk(start, stop)
        if not limited:
            return length
        fitting = self._full_tiles(start, self._seconds_left)
        return min(length, max(fitting, self._least, 0 if start else self._each))

    def _even_chunk(self, start: int, stop: int) -> int:
        left, costs = stop - start, self._costs
        if self._seconds == math.inf:
            return min(left, self._tokens)
        # A prompt is cut by its whole work, never by what is left of it.
        self._seconds = max(self._seconds, self._time.of(costs.chunk_seconds(0, stop)))
        room = self._seconds - self._spent
        if self._taken and (room <= 0 or self._tokens < min(left, _MIN_CHUNK)):
            return 0
        length = max(self._full_tiles(start, room), _MIN_CHUNK)
        if left <= length + _LAST_CHUNK:
            return min(left, self._tokens)
        if self._taken and room < costs.chunk_seconds(0, _MIN_CHUNK):
            return 0
        return min(length, self._tokens)

    def _full_tiles(self, start: int, seconds: float) -> int:
        """The positions from `start` on that take about these seconds, and fill tiles with the
        step's other tokens."""
        tokens = self._others + self._costs.chunk_length(start, seconds)
        return round(tokens / self._time.tile) * self._time.tile - self._others

    def take(self, start: int, length: int, *, limited: bool = False) -> None:
        self._tokens -= length
        self._others += length
        self._taken = True
        spent = self._costs.chunk_seconds(start, length)
        self._spent += spent
        self._seconds_left = max(0.0, self._seconds_left - spent)
        self._least = max(0, self._least - length * limited)
