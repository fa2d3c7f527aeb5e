"""Gated linear layers of many rows: the gate is applied inside the product, so that its 2 F outputs
a row are never written.

The product is persistent: one program a processor goes from tile to tile, so that the end of a tile
overlaps the first loads of the next. Programs work through a band of neighbouring rows across all
outputs, so that they find each other's data in the L2 cache.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.device.tuning import GatedTile
from workers.kernels.launch import processors
from workers.kernels.linear.activated import activated
from workers.layers.fused import FusedActivation

_ALIGNMENT = 16
"""Bytes. The copy engine requires it of a tensor's start and of the stride of its rows."""


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

    Both are contiguous; `in` and F are multiples of 16 bytes. The product is not rounded before the
    gate is applied.
    """
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
