"""The fastest of two ways to a gated layer's product: cuBLAS and the gate's kernel, or one kernel.

cuBLAS is fast for some numbers of rows and slow for others close by, and so are the own kernel's
tiles: each shape is measured once, at the numbers of rows in `GATED_MEASURED_ROWS`.

The own kernel applies the gate inside the product and never writes the 2 F outputs a row. It is
persistent: one program a processor goes from tile to tile, and the end of a tile overlaps the first
loads of the next. Programs work through a band of rows across all outputs, and find each other's
data in the L2 cache.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import logging
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.device.choices import Choices
from workers.device.timing import Stopwatch
from workers.device.tuning import (
    GATED_HIGH_TILE,
    GATED_LOW_TILE,
    GATED_MEASURED_ROWS,
    GatedTile,
)
from workers.kernels.launch import processors
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.rowwise import activated, activation_mul

_ALIGNMENT = 16
"""Bytes, of a tensor's start and of the stride of its rows, for the copy engine."""

_logger = logging.getLogger(__name__)


class GatedProduct:
    """[N, in] -> function(gate) * up, [N, F], by `weight` [2 F, in] and an optional `bias` [2 F].
    Their first halves belong to the gate."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        function: FusedActivation,
        choices: Choices,
    ) -> None:
        """The tiles are one of the `choices`, measured in about a second."""
        self._weight, self._bias = weight, bias
        self._function: FusedActivation = function
        self._tiles: list[GatedTile | None] | None = None
        if bias is None and can_multiply(weight):
            layer, device = (weight.shape, weight.dtype, function), weight.device
            measure, kind = partial(_tiles, *layer, device), list[GatedTile | None]
            self._tiles = choices.get("gated product", kind, measure, device, *layer)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if (tile := self._tile(len(rows))) is None:
            return activation_mul(F.linear(rows, self._weight, self._bias), self._function)
        return gated_linear(rows, self._weight, self._function, tile)

    def _tile(self, rows: int) -> GatedTile | None:
        """The own kernel's tile for this number of rows, or the next larger that was measured. None
        for cuBLAS."""
        measured = GATED_MEASURED_ROWS
        index = -(-(rows - measured.start) // measured.step)
        if self._tiles is None or index < 0:
            return None
        return self._tiles[index] if index < len(measured) else GATED_HIGH_TILE


def _tiles(
    shape: tuple[int, int],
    dtype: torch.dtype,
    function: FusedActivation,
    device: torch.device,
    watch: Stopwatch,
) -> list[GatedTile | None]:
    """The fastest way for each of `GATED_MEASURED_ROWS`. The numbers are random: the bits that
    change decide a processor's power, and so its speed."""
    weight = torch.randn(shape, dtype=dtype, device=device)
    tiles = [
        _fastest(torch.randn(rows, shape[1], dtype=dtype, device=device), weight, function, watch)
        for rows in GATED_MEASURED_ROWS
    ]
    _logger.info(
        "gated product, %d to %d features in %s: own kernel for %d of %d numbers of tokens",
        *(shape[1], shape[0] // 2, dtype, sum(tile is not None for tile in tiles), len(tiles)),
    )
    return tiles


def _fastest(
    rows: torch.Tensor, weight: torch.Tensor, function: FusedActivation, watch: Stopwatch
) -> GatedTile | None:
    ways: dict[GatedTile | None, Callable[[], object]] = {
        None: lambda: activation_mul(F.linear(rows, weight), function),
        GATED_LOW_TILE: lambda: gated_linear(rows, weight, function, GATED_LOW_TILE),
        GATED_HIGH_TILE: lambda: gated_linear(rows, weight, function, GATED_HIGH_TILE),
    }
    return min(ways, key=lambda way: watch.seconds(ways[way]))


def can_multiply(weight: torch.Tensor) -> bool:
    """Whether `gated_linear` can multiply by `weight` [2 F, in] on its GPU."""
    half, in_features = weight.shape[0] // 2, weight.shape[1]
    return (
        weight.itemsize == 2
        and torch.cuda.get_device_capability(weight.device)[0] == 9
        and all(size * weight.itemsize % _ALIGNMENT == 0 for size in (in_features, half))
    )


def gated_linear(
    rows: torch.Tensor, weight: torch.Tensor, function: FusedActivation, tile: GatedTile
) -> torch.Tensor:
    """[N, in] -> function(gate) * up, [N, F], by a weight [2 F, in] whose first half is the gate's.
    Both are contiguous; `in` and F are multiples of 16 bytes."""
    count, in_features = rows.shape
    out_features = weight.shape[0] // 2
    out = rows.new_empty(count, out_features)
    halves = weight.view(2, out_features, in_features)
    tiles = triton.cdiv(count, tile.rows) * triton.cdiv(out_features, tile.outputs)
    programs = min(tiles, processors(rows.device))
    _gated_linear[(programs,)](
        TensorDescriptor.from_tensor(rows, [tile.rows, tile.inputs]),
        TensorDescriptor.from_tensor(halves, [2, tile.outputs, tile.inputs]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
        count,
        out_features,
        in_features,
        programs,
        FUNCTION=function,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        BAND=tile.band,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


# Specializing them on divisibility by 16 would only cause another compilation.
@triton.jit(do_not_specialize=["count", "programs"])
def _gated_linear(
    rows, weight, out, count, out_features, in_features, programs, FUNCTION: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(count, ROWS)
    output_tiles = tl.cdiv(out_features, OUTPUTS)
    for tile in tl.range(tl.program_id(0), row_tiles * output_tiles, programs, flatten=True):
        first = tile // (BAND * output_tiles) * BAND
        height = tl.minimum(row_tiles - first, BAND)
        within = tile % (BAND * output_tiles)
        row = (first + within % height) * ROWS
        output = within // height * OUTPUTS
        total = tl.zeros((ROWS, 2 * OUTPUTS), tl.float32)
        for start in range(0, in_features, INPUTS):
            # One operand: gate and up are adjacent in shared memory, so reshaping moves nothing.
            both = weight.load([0, output, start]).reshape(2 * OUTPUTS, INPUTS)
            total = tl.dot(rows.load([row, start]), both.T, total)
        gate, up = total.reshape(ROWS, 2, OUTPUTS).permute(0, 2, 1).split()
        out.store([row, output], (activated(gate, FUNCTION) * up).to(out.dtype))
