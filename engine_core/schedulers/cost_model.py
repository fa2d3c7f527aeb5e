"""A step's seconds on the slowest stage by its work, learnt from the stages' times."""

import math
from operator import mul
from typing import NamedTuple

from engine_core.loop.reports import StepWork
from workers.contract.model_config import ModelConfig

_WEIGHT_BYTES = 2

_FLOPS, _BYTES_PER_SECOND = 600e12, 4e12
"""Rates of a large GPU. They only say how the parts of a step compare until steps are measured."""

_FORGET = 0.99
"""Weight of what is known, after each step: about the last 100 steps count."""

_STAY = 0.02
"""Weight of the coefficients as they are, in steps."""

_OUTLIER = 3.0
"""Deviations of more than so many usual ones count less, in proportion."""

_SWEEPS = 2

_LEAST_FACTOR = 1e-6
"""So that every work takes time."""


class Coefficients(NamedTuple):
    """Seconds of a step, and of each unit of its work."""

    step: float
    token: float
    attended: float
    context: float


def starting_coefficients(model: ModelConfig) -> Coefficients:
    """Estimate the coefficients from a model's shape. Weights are read once a step, tokens and
    attention are arithmetic, and decode rows read their keys and values."""
    weights, heads = model.layer_numbers, [*map(model.heads_of, range(model.num_layers))]
    queries = sum(own.num_heads * own.head_dim for own in heads)
    keys = sum(own.num_kv_heads * own.head_dim for own in heads)
    return Coefficients(
        step=weights * _WEIGHT_BYTES / _BYTES_PER_SECOND,
        token=2 * weights / _FLOPS,
        attended=4 * queries / _FLOPS,
        context=2 * keys * _WEIGHT_BYTES / _BYTES_PER_SECOND,
    )


class CostModel:
    """A linear model of a step's time, fitted on line.

    Recursive least squares of relative errors over four positive coefficients, with forgetting;
    outliers weigh less (Huber). In directions that the steps do not determine the coefficients
    stay: decode steps of one size say nothing about prompts.
    """

    def __init__(self, start: Coefficients) -> None:
        self.coefficients = self._start = start
        self._factors = [1.0] * 4  # the coefficients, in units of `_start`
        # The normal equations of Σ weight · (x · factors - 1)² over steps, rows of [x xᵀ | x].
        # Apart, so that hours of decoding do not outweigh what prompts have shown.
        self._prompts, self._decodes = [[[0.0] * 5 for _ in range(4)] for _ in range(2)]
        self._deviation = 0.0
        self.measured = False

    def seconds(self, work: StepWork) -> float:
        step, token, attended, context = self.coefficients
        return step + token * work.tokens + attended * work.attended + context * work.contexts

    def chunk_seconds(self, start: int, length: int) -> float:
        """Seconds that positions [start, start + length) of a prompt add to a step."""
        _, token, attended, _ = self.coefficients
        return token * length + attended * length * (start + length / 2)

    def chunk_length(self, start: int, seconds: float) -> int:
        """How many positions of a prompt from `start` on add these seconds to a step."""
        _, token, attended, _ = self.coefficients
        first = token + attended * start
        return int(2 * seconds / (first + math.sqrt(first * first + 2 * attended * seconds)))

    def observe(self, work: StepWork, seconds: float) -> None:
        if seconds <= 0:
            return
        values = (1.0, *work)
        if not self.measured:
            self.measured = True
            scale = seconds / self.seconds(work)
            # In units of a faster device the equations would weigh nothing beside `_STAY`.
            unit = max(1.0, scale)
            self._start = Coefficients(*(c * unit for c in self._start))
            self._factors = [scale / unit] * 4
        start = self._start
        x = [c * value / seconds for c, value in zip(start, values, strict=True)]
        error = sum(f * value for f, value in zip(self._factors, x, strict=True)) - 1.0
        equations = self._prompts if work.attended else self._decodes
        _add_step(equations, x, self._weight(abs(error)))
        self._solve()
        self.coefficients = Coefficients(
            *(c * factor for c, factor in zip(start, self._factors, strict=True))
        )

    def _weight(self, error: float) -> float:
        """The weight of a step whose prediction was off by this fraction of its time."""
        usual = max(self._deviation, 1e-3)
        limit = _OUTLIER * usual
        # A new kind of load is off again and again: the usual deviation then grows until it counts.
        self._deviation = usual + 0.05 * (min(error, 2 * limit) - usual)
        return 1.0 if error <= limit else limit / error

    def _solve(self) -> None:
        """Improve the factors by coordinate descent. The next step continues the sweeps."""
        factors, anchors = self._factors, tuple(self._factors)
        both = zip(self._prompts, self._decodes, strict=True)
        rows = [[p + d for p, d in zip(*pair, strict=True)] for pair in both]
        for _ in range(_SWEEPS):
            for index, row in enumerate(rows):
                own = row[index]
                wanted = row[4] - sum(map(mul, row, factors))
                wanted += own * factors[index] + _STAY * anchors[index]
                factors[index] = max(_LEAST_FACTOR, wanted / (own + _STAY))


def _add_step(rows: list[list[float]], x: list[float], weight: float) -> None:
    """Add a step to the equations. The weights of those before fall."""
    for row, value in zip(rows, x, strict=True):
        weighted = weight * value
        terms = zip(row, (*x, 1.0), strict=True)
        row[:] = [_FORGET * known + weighted * term for known, term in terms]
