"""Products of rows and a weight that are both in FP8 (e4m3), with scales in float32.

The kernel is persistent, as in `gated_product`: one program a processor goes from tile to tile.
Scales of rows and of outputs are applied to a tile's totals, before the gate. Hopper's tensor cores
add with some 14 bits: for these scales they may, as in cuBLAS with fast accumulation. With a scale
for each 128 inputs, totals of 128 are added in float32 (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.device.tuning import GatedTile
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.launch import processors
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows
from workers.kernels.linear.rowwise import activated


def scaled_linear(
    rows: QuantizedRows,
    weight: torch.Tensor,
    scales: torch.Tensor,
    tile: GatedTile,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    gate: FusedActivation | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """[N, in] -> [N, out] in `dtype`, plus `residual` [N, out], which is overwritten with the
    result and returned. With a `gate`: gate(first half) * second half, [N, out / 2].

    `scales` are those of an `Fp8Weight`; a tile of blocks takes 128 inputs and at most as many
    outputs. `in` is a multiple of 16, the result's width of 8.
    """
    (count, in_features), parts = rows.values.shape, 1 if gate is None else 2
    width = weight.shape[0] // parts
    out = rows.values.new_empty((count, width), dtype=dtype) if residual is None else residual
    tiles = triton.cdiv(count, tile.rows) * triton.cdiv(width, tile.outputs)
    programs = min(tiles, processors(out.device))
    halves, box = weight.view(parts, width, in_features), [parts, tile.outputs, tile.inputs]
    arguments: list[object] = [
        TensorDescriptor.from_tensor(rows.values, [tile.rows, tile.inputs]),
        TensorDescriptor.from_tensor(halves, box),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.outputs]),
    ]
    arguments += [rows.scales, scales, scales if bias is None else bias, rows.scales.stride(1)]
    options = {"BIAS": bias is not None, "RESIDUAL": residual is not None}
    options |= {"GROUP": GROUP if scales.dim() == 2 else 0, "GATE": gate or "", "PARTS": parts}
    options |= {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs}
    options |= {"BAND": tile.band, "num_warps": tile.warps, "num_stages": tile.stages}
    _scaled_linear[(programs,)](
        *arguments, count, width, in_features, programs, **options, **pdl(out)
    )
    return out


@triton.jit(do_not_specialize=["count", "programs"])
def _scaled_linear(
    rows, weight, out, row_scales, scales, bias, stride, count, out_features, in_features,
    programs, GROUP: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BAND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row_tiles = tl.cdiv(count, ROWS)
    output_tiles = tl.cdiv(out_features, OUTPUTS)
    both = tl.arange(0, PARTS * OUTPUTS)
    for tile in tl.range(tl.program_id(0), row_tiles * output_tiles, programs, flatten=True):
        first = tile // (BAND * output_tiles) * BAND
        height = tl.minimum(row_tiles - first, BAND)
        within = tile % (BAND * output_tiles)
        row = (first + within % height) * ROWS
        output = within // height * OUTPUTS
        here = row + tl.arange(0, ROWS)
        # Outputs of a tile past the last have any number's scale.
        inside = tl.minimum(output + both % OUTPUTS, out_features - 1)
        outputs = both // OUTPUTS * out_features + inside
        total = tl.zeros((ROWS, PARTS * OUTPUTS), tl.float32)
        for start in range(0, in_features, INPUTS):
            tile_weight = weight.load([0, output, start]).reshape(PARTS * OUTPUTS, INPUTS)
            if GROUP:
                tl.static_assert(INPUTS == GROUP and OUTPUTS <= GROUP)
                group = start // GROUP
                of_rows = row_scales + group * stride + here
                row_scale = tl.load(of_rows, mask=here < count, other=0.0)
                block = scales + output // GROUP * tl.cdiv(in_features, GROUP) + group
                scale = tl.load(block)
                part = tl.dot(rows.load([row, start]), tile_weight.T)
                if GATE != "":
                    up = out_features // GROUP * tl.cdiv(in_features, GROUP)
                    scale = tl.where(both < OUTPUTS, scale, tl.load(block + up))[None, :]
                total += part * (row_scale[:, None] * scale)
            else:
                total = tl.dot(rows.load([row, start]), tile_weight.T, total)
        if not GROUP:
            total *= tl.load(row_scales + here, mask=here < count, other=0.0)[:, None]
            total *= tl.load(scales + outputs)[None, :]
        if BIAS:
            total += tl.load(bias + outputs).to(tl.float32)[None, :]
        if GATE != "":
            gate, up = total.reshape(ROWS, 2, OUTPUTS).permute(0, 2, 1).split()
            total = activated(gate, GATE) * up
        if RESIDUAL:
            # The copy engine adds: no tile of the residual takes room in shared memory.
            out.atomic_add([row, output], total.to(out.dtype))
        else:
            out.store([row, output], total.to(out.dtype))
