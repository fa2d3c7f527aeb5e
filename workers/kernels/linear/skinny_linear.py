"""Linear layers of a few rows, whose time is that of reading the weight.

A program owns some of the outputs and streams their weights once, for all rows. The operations
around the product are fused. With programmatic dependent launch (`pdl`), programs read weights
while the kernel before still runs: a gap of some 3 us, a tenth of a small layer's time.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.device import tuning
from workers.device.tuning import SkinnyTile
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.linear.fused import Fp8Weight, FusedActivation
from workers.kernels.linear.quantized_rows import QuantizedRows
from workers.kernels.linear.rowwise import activated, rms_norm


def prefers(rows: int, *, normed: bool) -> bool:
    """Whether `linear` beats cuBLAS and separate kernels."""
    return rows <= (tuning.SKINNY_MAX_NORMED_ROWS if normed else tuning.SKINNY_MAX_ROWS)


def linear(
    rows: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    gate: FusedActivation | None = None,
    tile: SkinnyTile | None = None,
) -> torch.Tensor:
    """[N, in] -> [N, out]: `norm(rows) @ weight.T + bias`, plus `residual` [N, out], which is
    overwritten with the result and returned. `norm` is an RMSNorm's weight [in] and epsilon. With
    a `gate`: gate(first half) * second half of the outputs, [N, out / 2].
    """
    count = len(rows)
    out_features = weight.shape[0] if gate is None else weight.shape[0] // 2
    tile = tile or _tile(rows, out_features, gated=gate is not None)
    if norm is not None and count > 1:
        # Once instead of in every program; meanwhile the programs of the product fetch weights.
        rows, norm = rms_norm(rows, *norm), None
    out = residual if residual is not None else rows.new_empty(count, out_features)
    around = bias, out, tile, gate, residual is not None
    if count > 1:
        return _launch_few(rows, weight, None, *around)
    one_row: list[object] = [*(norm or (weight, 0.0))]
    return _launch(_one_row, rows, weight, *around, one_row, NORM=norm is not None)


def fp8_linear(
    rows: QuantizedRows,
    weight: Fp8Weight,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: FusedActivation | None = None,
) -> torch.Tensor:
    """As `linear`, of rows and a weight that are in FP8, [N, out] in `dtype`."""
    out_features = len(weight.values) if gate is None else len(weight.values) // 2
    out = residual
    if out is None:
        out = rows.scales.new_empty(len(rows.values), out_features, dtype=dtype)
    tile = tuning.SKINNY_FP8 if gate is None else tuning.SKINNY_FP8_GATED
    if weight.in_blocks:
        tile = tuning.SKINNY_FP8_BLOCKS
    scales = rows.scales, weight.scales
    around = bias, out, tile, gate, residual is not None
    return _launch_few(rows.values, weight.values, scales, *around)


def _launch_few(
    rows: torch.Tensor,
    weight: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: SkinnyTile,
    gate: FusedActivation | None,
    adds: bool,
) -> torch.Tensor:
    """`_few_rows`, with `scales` of the rows and of the weight if they are in FP8."""
    of_rows, of_weight = scales or (weight, weight)
    arguments: list[object] = [len(rows), rows.stride(0), of_rows, of_weight, of_rows.stride(1)]
    return _launch(
        _few_rows,
        *(rows, weight, bias, out, tile, gate, adds, arguments),
        SCALED="" if scales is None else "rows" if of_weight.dim() == 1 else "blocks",
        ROWS=max(16, triton.next_power_of_2(len(rows))),
        AHEAD=_prefetched(tile, rows.shape[1] * weight.itemsize),
    )


def _launch(
    kernel: Any,
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: SkinnyTile,
    gate: FusedActivation | None,
    adds: bool,
    arguments: list[object],
    **options: object,
) -> torch.Tensor:
    """Launch a kernel with the arguments of both kernels and its own, which `adds` to `out`."""
    kernel[(triton.cdiv(out.shape[1], tile.outputs),)](
        *(rows, weight, weight if bias is None else bias, out, out.shape[1], rows.shape[1]),
        *arguments,
        **options,
        BIAS=bias is not None,
        RESIDUAL=adds,
        GATE=gate or "",
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl(rows),
    )
    return out


def _prefetched(tile: SkinnyTile, row_bytes: int) -> int:
    """A prefetch must be aligned to 16 bytes, and must not pass the end of a row."""
    return tile.ahead if tile.ahead <= row_bytes and row_bytes % 16 == 0 else 0


def _tile(rows: torch.Tensor, out_features: int, *, gated: bool) -> SkinnyTile:
    if len(rows) == 1:
        return _one_row_tile(rows.shape[1], out_features, gated=gated)
    if rows.itemsize > 2:
        return tuning.SKINNY_FLOAT32
    few = len(rows) <= 16
    if gated:
        return tuning.SKINNY_16_ROWS_GATED if few else tuning.SKINNY_32_ROWS_GATED
    if out_features > tuning.SKINNY_WIDE_OUTPUTS:
        return tuning.SKINNY_16_ROWS_WIDE if few else tuning.SKINNY_32_ROWS_WIDE
    return tuning.SKINNY_16_ROWS if few else tuning.SKINNY_32_ROWS


def _one_row_tile(in_features: int, out_features: int, *, gated: bool) -> SkinnyTile:
    if gated:
        few = out_features < tuning.SKINNY_FEW_GATED_OUTPUTS
        tile = tuning.SKINNY_ONE_ROW_GATED_FEW_OUTPUTS if few else tuning.SKINNY_ONE_ROW_GATED
    else:
        few = out_features < tuning.SKINNY_FEW_OUTPUTS
        tile = tuning.SKINNY_ONE_ROW_FEW_OUTPUTS if few else tuning.SKINNY_ONE_ROW
    # The last iteration should not be half empty.
    return tile if in_features % tile.inputs == 0 else tile._replace(inputs=tile.inputs // 2)


@triton.jit
def _one_row(
    rows, weight, bias, out, out_features, in_features, norm_weight, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr,
    PDL: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    GATED: tl.constexpr = GATE != ""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    inside = outputs < out_features
    first = weight + outputs.to(tl.int64)[:, None] * in_features + inputs[None, :]
    second = first + in_features.to(tl.int64) * out_features
    mask = inside[:, None] & (inputs[None, :] < in_features)
    tile = tl.load(first, mask=mask, other=0.0)
    up_tile = tl.load(second, mask=mask, other=0.0) if GATED else tile
    added = _loaded(bias + outputs, inside, BIAS)
    up_added = _loaded(bias + out_features + outputs, inside, BIAS and GATED)
    wait_for_previous(PDL)
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    up_total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    squares = tl.zeros((INPUTS,), tl.float32)
    for start in range(0, in_features, INPUTS):
        here = start + inputs
        row = tl.load(rows + here, mask=here < in_features, other=0.0).to(tl.float32)
        if NORM:
            squares += row * row
            row *= tl.load(norm_weight + here, mask=here < in_features, other=0.0).to(tl.float32)
        total += tile.to(tl.float32) * row[None, :]
        if GATED:
            up_total += up_tile.to(tl.float32) * row[None, :]
        mask = inside[:, None] & (here[None, :] + INPUTS < in_features)
        tile = tl.load(first + start + INPUTS, mask=mask, other=0.0)
        if GATED:
            up_tile = tl.load(second + start + INPUTS, mask=mask, other=0.0)
    result = tl.sum(total, axis=1)
    up = tl.sum(up_total, axis=1)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares) / in_features + eps)
        result *= scale
        up *= scale
    result += added
    if GATED:
        result = activated(result, GATE) * (up + up_added)
    target = out + outputs
    if RESIDUAL:
        result += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _loaded(values, mask, PRESENT: tl.constexpr):
    """A bias in float32, before the rows arrive. 0 without one."""
    if PRESENT:
        loaded = tl.load(values, mask=mask, other=0.0).to(tl.float32)
    else:
        loaded = tl.zeros(values.shape, tl.float32)
    return loaded


@triton.jit
def _fetch_ahead(weight, outputs, out_features, in_features, BYTES: tl.constexpr):
    """Prefetch the first BYTES of these outputs' weights into the L2 cache, 256 a request."""
    size: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
    pieces = tl.arange(0, BYTES // 256) * (256 // size)
    owned = tl.minimum(outputs, out_features - 1).to(tl.int64)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 256; mov.u32 $0, 0;",
        "=r,l",
        [(weight + owned[:, None] * in_features + pieces[None, :]).to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _added(total, tile, columns, block, of_rows, present, SCALED: tl.constexpr):
    """`total` plus the product of weights, of one `block` if that has a scale, and columns."""
    if SCALED == "blocks":
        tl.static_assert(tile.shape[1] == 128)
        scale = tl.load(block) * tl.load(of_rows, mask=present, other=0.0)[None, :]
        total += tl.dot(tile, columns) * scale
    else:
        total = tl.dot(tile, columns, total, input_precision="ieee")
    return total


@triton.jit
def _few_rows(
    rows, weight, bias, out, out_features, in_features, count, stride, row_scales, scales,
    scales_stride, SCALED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    GATE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    GATED: tl.constexpr = GATE != ""
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    which = tl.arange(0, ROWS)
    inside, present = outputs < out_features, which < count
    half = in_features.to(tl.int64) * out_features
    first = weight + outputs.to(tl.int64)[:, None] * in_features + inputs[None, :]
    added = _loaded(bias + outputs, inside, BIAS)
    up_added = _loaded(bias + out_features + outputs, inside, BIAS and GATED)
    scale = _loaded(scales + outputs, inside, SCALED == "rows")
    up_scale = _loaded(scales + out_features + outputs, inside, SCALED == "rows" and GATED)
    blocks = tl.cdiv(in_features, 128)
    block = scales + tl.program_id(0) * OUTPUTS // 128 * blocks
    up_block = block + out_features // 128 * blocks
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    up_total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    if PDL:
        if AHEAD:
            _fetch_ahead(weight, outputs, out_features, in_features, AHEAD)
            if GATED:
                _fetch_ahead(weight + half, outputs, out_features, in_features, AHEAD)
        gdc_launch_dependents()
        gdc_wait()
    for start in range(0, in_features, INPUTS):
        here = start + inputs
        known = here < in_features
        columns = tl.load(
            rows + which[None, :] * stride + here[:, None],
            mask=known[:, None] & present[None, :], other=0.0,
        )  # fmt: skip
        mask = inside[:, None] & known[None, :]
        tile = tl.load(first + start, mask=mask, other=0.0)
        of_rows = row_scales + start // 128 * scales_stride + which
        total = _added(total, tile, columns, block + start // 128, of_rows, present, SCALED)
        if GATED:
            tile = tl.load(first + half + start, mask=mask, other=0.0)
            here_up = up_block + start // 128
            up_total = _added(up_total, tile, columns, here_up, of_rows, present, SCALED)
    if SCALED == "rows":
        of_rows = tl.load(row_scales + which, mask=present, other=0.0)[None, :]
        total *= scale[:, None] * of_rows
        up_total *= up_scale[:, None] * of_rows
    total += added[:, None]
    if GATED:
        total = activated(total, GATE) * (up_total + up_added[:, None])
    target = out + which[None, :].to(tl.int64) * out_features + outputs[:, None]
    mask = inside[:, None] & present[None, :]
    if RESIDUAL:
        total += tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=mask)
