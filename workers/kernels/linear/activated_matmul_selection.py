"""Selects the faster way to a linear layer with an activation function after it, for many rows:
cuBLAS followed by torch's function, or the project's own kernel with the function inside."""

import logging
from functools import cache

import torch
import torch.nn.functional as F

from workers.device.timing import least_milliseconds
from workers.device.tuning import (
    ACTIVATED_MEASURED_ROWS,
    ACTIVATED_MIN_ROWS,
    ACTIVATED_TILES,
    GatedTile,
)
from workers.kernels.linear.activated_matmul import activated_linear
from workers.kernels.linear.gated_matmul import can_multiply
from workers.layers.fused import FusedActivation

_logger = logging.getLogger(__name__)


class ActivatedProduct:
    """[N, in] -> function(rows @ weight.T + bias), [N, F], by `weight` [F, in] and `bias` [F]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, function: FusedActivation) -> None:
        """Measures for the first weight of a shape, some milliseconds on its GPU, and logs it."""
        self._weight, self._bias = weight, bias
        self._function: FusedActivation = function
        layer = weight.shape, weight.dtype, weight.device
        self._tile = _fastest(*layer, function) if can_multiply(weight) else None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._tile is None or len(rows) < ACTIVATED_MIN_ROWS:
            return _separately(rows, self._weight, self._bias, self._function)
        return activated_linear(rows, self._weight, self._bias, self._function, self._tile)


def _separately(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, function: FusedActivation
) -> torch.Tensor:
    product = F.linear(rows, weight, bias)
    if function == "silu":
        return F.silu(product)
    return F.gelu(product, approximate="none" if function == "gelu" else "tanh")


@cache
def _fastest(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, function: FusedActivation
) -> GatedTile | None:
    """The fastest tile; None where the library is faster. Measured with random numbers, as the
    gated product."""
    rows = torch.randn(ACTIVATED_MEASURED_ROWS, shape[1], dtype=dtype, device=device)
    weight = torch.randn(shape, dtype=dtype, device=device) * shape[1] ** -0.5
    bias = torch.randn(shape[0], dtype=dtype, device=device)
    taken: dict[GatedTile | None, float] = {
        None: least_milliseconds(lambda: _separately(rows, weight, bias, function))
    }
    for tile in ACTIVATED_TILES:
        taken[tile] = least_milliseconds(
            lambda tile=tile: activated_linear(rows, weight, bias, function, tile)
        )
    ways = ", ".join(
        f"{'library' if tile is None else f'own kernel ({tile.rows} x {tile.outputs})'} {time:.3f}"
        for tile, time in taken.items()
    )
    layer = f"{shape[1]} to {shape[0]} features with {function} in {dtype}"
    _logger.info("%s, ms for %d tokens: %s", layer, len(rows), ways)
    return min(taken, key=lambda tile: taken[tile])
