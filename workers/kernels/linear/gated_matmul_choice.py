"""A gated layer's product in the fastest way for its number of rows: the library's and a kernel for
the gate, or our own with the gate within.

The library is fast for some numbers of rows and slow for others close by, and so it goes for tiles,
which have an edge of their own. Which is which only measuring tells: it is done once for a shape,
at some numbers of rows, and a number in between goes by the next larger.
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
from workers.kernels.linear.gated_matmul import HIGH, LOW, Tile, can_multiply, gated_linear
from workers.kernels.linear.silu_mul import silu_mul

_STEP, _FIRST, _LAST = 16, 400, 1024
"""Rows. Up to the first the library wins, beyond the last the high tiles do (RESULTS.md)."""

_ROUNDS, _PAUSE_SECONDS = 2, 2e-3
"""A GPU at its power limit lowers its clock, which not all ways suffer from alike. Steps of so few
tokens are mostly those of one that is far from it: hence the pauses."""

_logger = logging.getLogger(__name__)


class GatedProduct:
    """[N, in] -> silu(gate) * up, [N, F], by `weight` [2 F, in] and, if there is one, `bias` [2 F],
    of which the first halves are the gates'."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Measures for the first weight of a shape, about a second on its GPU, and logs it."""
        self._weight, self._bias = weight, bias
        has_choice = bias is None and can_multiply(weight)
        self._tiles = _tiles(weight.shape, weight.dtype, weight.device, has_choice=has_choice)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if (tile := self._tile(len(rows))) is None:
            return silu_mul(F.linear(rows, self._weight, self._bias))
        return gated_linear(rows, self._weight, tile)

    def _tile(self, rows: int) -> Tile | None:
        """That of our own product for so many rows; None where the library's is used."""
        if self._tiles is None or rows <= _FIRST - _STEP:
            return None
        return HIGH if rows > _LAST else self._tiles[-(-(rows - _FIRST) // _STEP)]


@cache
def _tiles(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, *, has_choice: bool
) -> Sequence[Tile | None] | None:
    """The fastest for each number of rows that is measured, over random numbers: how many bits
    change decides what a processor draws, and so how fast it runs. None without a choice."""
    product = f"gated product, {shape[1]} to {shape[0] // 2} features in {dtype}"
    if not has_choice:
        _logger.info("%s: library for any number of tokens", product)
        return None
    started = time.monotonic()
    weight = torch.randn(shape, dtype=dtype, device=device)
    tiles = [
        _fastest(torch.randn(rows, shape[1], dtype=dtype, device=device), weight)
        for rows in range(_FIRST, _LAST + 1, _STEP)
    ]
    seconds = time.monotonic() - started
    _logger.info("%s, by tokens: %s; measured in %.1f s", product, spelled(tiles), seconds)
    return tiles


def spelled(tiles: Sequence[Tile | None]) -> str:
    """Up to which numbers of rows each way is taken; `tiles` are those that were measured."""
    ways = [None, *tiles, HIGH]
    most = [f"to {rows}" for rows in range(_FIRST - _STEP, _LAST + 1, _STEP)]
    by_way = groupby(zip(ways, [*most, "beyond"], strict=True), key=itemgetter(0))
    return ", ".join(
        f"{'library' if way is None else f'own kernel (tiles of {way.rows} rows)'} "
        f"{[end for _, end in run][-1]}"
        for way, run in by_way
    )


def _fastest(rows: torch.Tensor, weight: torch.Tensor) -> Tile | None:
    ways: dict[Tile | None, Callable[[], object]] = {
        None: lambda: silu_mul(F.linear(rows, weight)),
        LOW: lambda: gated_linear(rows, weight, LOW),
        HIGH: lambda: gated_linear(rows, weight, HIGH),
    }
    rounds = [{way: _milliseconds(run) for way, run in ways.items()} for _ in range(_ROUNDS)]
    return min(ways, key=lambda way: min(taken[way] for taken in rounds))


def _milliseconds(run: Callable[[], object]) -> float:
    """Of a run behind another one, so that launching it takes no time."""
    time.sleep(_PAUSE_SECONDS)
    run()
    return least_milliseconds(run)
