"""Selects the fastest way to a gated layer's product for a number of rows: cuBLAS followed by the
gate's kernel, or the project's own kernel with the gate inside.

cuBLAS is fast for some numbers of rows and slow for others close by, and so are the tiles of the
own kernel. Only measuring shows which is faster: it is done once for a shape, at the numbers of
rows in `GATED_MEASURED_ROWS`; a number in between takes the way of the next larger.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter

import torch
import torch.nn.functional as F

from workers.device.timing import least_milliseconds
from workers.device.tuning import (
    GATED_HIGH_TILE,
    GATED_LOW_TILE,
    GATED_MEASURED_ROWS,
    GatedTile,
)
from workers.kernels.linear.activation_mul import activation_mul
from workers.kernels.linear.gated_matmul import can_multiply, gated_linear
from workers.layers.fused import FusedActivation

_ROUNDS, _PAUSE_SECONDS = 2, 2e-3
"""A GPU at its power limit lowers its clock, which slows some ways more than others. Steps of so
few tokens mostly run far from that limit: hence the pauses."""

_logger = logging.getLogger(__name__)


class GatedProduct:
    """[N, in] -> function(gate) * up, [N, F], by `weight` [2 F, in] and an optional `bias` [2 F],
    whose first halves belong to the gate."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, function: FusedActivation
    ) -> None:
        """Measures for the first weight of a shape, about a second on its GPU, and logs it."""
        self._weight, self._bias = weight, bias
        self._function: FusedActivation = function
        has_choice = bias is None and can_multiply(weight)
        layer = weight.shape, weight.dtype, weight.device
        self._tiles = _tiles(*layer, function, has_choice=has_choice)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if (tile := self._tile(len(rows))) is None:
            return activation_mul(F.linear(rows, self._weight, self._bias), self._function)
        return gated_linear(rows, self._weight, self._function, tile)

    def _tile(self, rows: int) -> GatedTile | None:
        """The own kernel's tile for this number of rows; None for cuBLAS."""
        measured = GATED_MEASURED_ROWS
        index = -(-(rows - measured.start) // measured.step)
        if self._tiles is None or index < 0:
            return None
        return self._tiles[index] if index < len(measured) else GATED_HIGH_TILE


@cache
def _tiles(
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    function: FusedActivation,
    *,
    has_choice: bool,
) -> Sequence[GatedTile | None] | None:
    """The fastest way for each of `GATED_MEASURED_ROWS`; None without a choice.

    Measured with random numbers: how many bits change decides how much power a processor draws,
    and so how fast it runs.
    """
    product = f"gated product, {shape[1]} to {shape[0] // 2} features in {dtype}"
    if not has_choice:
        _logger.info("%s: library for any number of tokens", product)
        return None
    started = time.monotonic()
    weight = torch.randn(shape, dtype=dtype, device=device)
    tiles = [
        _fastest(torch.randn(rows, shape[1], dtype=dtype, device=device), weight, function)
        for rows in GATED_MEASURED_ROWS
    ]
    seconds = time.monotonic() - started
    _logger.info("%s, by tokens: %s; measured in %.1f s", product, formatted_ways(tiles), seconds)
    return tiles


def formatted_ways(tiles: Sequence[GatedTile | None]) -> str:
    """Up to which number of rows each way is taken, given the `tiles` that were measured."""
    measured = GATED_MEASURED_ROWS
    ways = [None, *tiles, GATED_HIGH_TILE]
    ends = [f"to {rows}" for rows in (measured.start - measured.step, *measured)]
    by_way = groupby(zip(ways, [*ends, "beyond"], strict=True), key=itemgetter(0))
    return ", ".join(
        f"{'library' if way is None else f'own kernel (tiles of {way.rows} rows)'} "
        f"{[end for _, end in run][-1]}"
        for way, run in by_way
    )


def _fastest(
    rows: torch.Tensor, weight: torch.Tensor, function: FusedActivation
) -> GatedTile | None:
    ways: dict[GatedTile | None, Callable[[], object]] = {
        None: lambda: activation_mul(F.linear(rows, weight), function),
        GATED_LOW_TILE: lambda: gated_linear(rows, weight, function, GATED_LOW_TILE),
        GATED_HIGH_TILE: lambda: gated_linear(rows, weight, function, GATED_HIGH_TILE),
    }
    rounds = [{way: _milliseconds(run) for way, run in ways.items()} for _ in range(_ROUNDS)]
    return min(ways, key=lambda way: min(taken[way] for taken in rounds))


def _milliseconds(run: Callable[[], object]) -> float:
    """The time of a run right after another one, so that launching it is not measured."""
    time.sleep(_PAUSE_SECONDS)
    run()
    return least_milliseconds(run)
