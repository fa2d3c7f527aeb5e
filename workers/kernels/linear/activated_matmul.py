"""Linear layers of many rows with the activation function inside the product, so that its outputs
are written once and not read again. The library's own epilogue has only GELU's approximation.

The product is persistent, as that of `gated_matmul`.
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


def activated_linear(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    function: FusedActivation,
    tile: GatedTile,
) -> torch.Tensor:
    """[N, in] -> function(rows @ weight.T + bias), [N, F], by a weight [F, in] and a bias [F].

    All are contiguous; `in` and F are multiples of 16 bytes. The product is not rounded before the
    function is applied.
    """
    count, in_features = rows.shape
    out_features = weight.shape[0]
    out = rows.new_empty(count, out_features)
    tiles = triton.cdiv(count, tile.rows) * triton.cdiv(out_features, tile.outputs)
    programs = min(tiles, processors(rows.device))
    _activated_linear[(programs,)](
        TensorDescriptor.from_tensor(rows, [tile.rows, tile.inputs]),
        TensorDescriptor.from_tensor(weight, [tile.outputs, tile.inputs]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
        bias,
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
def _activated_linear(
    rows, weight, out, bias, count, out_features, in_features, programs, FUNCTION: tl.constexpr,
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
        total = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for start in range(0, in_features, INPUTS):
            total = tl.dot(rows.load([row, start]), weight.load([output, start]).T, total)
        outputs = output + tl.arange(0, OUTPUTS)
        added = tl.load(bias + outputs, mask=outputs < out_features, other=0.0).to(tl.float32)
        out.store([row, output], activated(total + added[None, :], FUNCTION).to(out.dtype))
