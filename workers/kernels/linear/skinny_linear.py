"""Linear layers of a few rows, whose time is that of reading the weight.

A program owns some of the outputs and streams their weights once, for all rows. The operations
around the product are fused. With programmatic dependent launch (`pdl`), programs read weights
while the kernel before still runs: a gap of some 3 us, a tenth of a small layer's time.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.device import tuning
from workers.device.tuning import SkinnyTile
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.rowwise import activated, rms_norm


def prefers(rows: int, *, normed: bool) -> bool:
    """Whether `linear` beats cuBLAS and separate kernels."""
    return rows <= (tuning.SKINNY_MAX_NORMED_ROWS if normed else tuning.SKINNY_MAX_ROWS)


def linear(
    rows: torch.Tensor,
    weight: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    residual: torch.Tensor | None = None,
    gate: FusedActivation | None = None,
    tile: SkinnyTile | None = None,
) -> torch.Tensor:
    """[N, in] -> [N, out]: `norm(rows) @ weight.T + bias`, plus `residual` [N, out], which is
    overwritten with the result and returned. `norm` is an RMSNorm's weight [in] and epsilon. With
    a `gate`: gate(first half) * second half of the outputs, [N, out / 2].

    A weight in FP8 has `scales` as `Fp8Weight` has them, and is multiplied in the rows' type.
    """
    count, in_features = rows.shape
    out_features = weight.shape[0] if gate is None else weight.shape[0] // 2
    scaled = "" if scales is None else "outputs" if scales.dim() == 1 else "blocks"
    tile = tile or _tile(rows, out_features, scaled, gated=gate is not None)
    if norm is not None and count > 1:
        # Once instead of in every program; meanwhile the programs of the product fetch weights.
        rows, norm = rms_norm(rows, *norm), None
    out = residual if residual is not None else rows.new_empty(count, out_features)
    arguments: list[object] = [rows, weight, weight if scales is None else scales]
    arguments += [weight if bias is None else bias, out, out_features, in_features]
    options: dict[str, object] = {"BIAS": bias is not None, "RESIDUAL": residual is not None}
    options |= {"SCALED": scaled, "GATE": gate or ""}
    options |= {"OUTPUTS": tile.outputs, "INPUTS": tile.inputs}
    if count == 1:
        kernel = _one_row
        arguments += norm or (weight, 0.0)
        options["NORM"] = norm is not None
    else:
        kernel = _few_rows
        arguments += [count, rows.stride(0)]
        options["ROWS"] = max(16, triton.next_power_of_2(count))
        options["AHEAD"] = _prefetched(tile, in_features * weight.itemsize)
    kernel[(triton.cdiv(out_features, tile.outputs),)](
        *arguments, **options, num_warps=tile.warps, num_stages=tile.stages, **pdl(rows)
    )
    return out


def _prefetched(tile: SkinnyTile, row_bytes: int) -> int:
    """A prefetch must be aligned to 16 bytes, and must not pass the end of a row."""
    return tile.ahead if tile.ahead <= row_bytes and row_bytes % 16 == 0 else 0


def _tile(rows: torch.Tensor, out_features: int, scaled: str, *, gated: bool) -> SkinnyTile:
    if len(rows) == 1:
        return _one_row_tile(rows.shape[1], out_features, gated=gated)
    if scaled:
        return tuning.SKINNY_FP8_GATED if gated else tuning.SKINNY_FP8
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
    rows, weight, scales, bias, out, out_features, in_features, norm_weight, eps,
    NORM: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    GATE: tl.constexpr, PDL: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
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
    scale = _loaded(scales + outputs, inside, SCALED == "outputs")
    up_scale = _loaded(scales + out_features + outputs, inside, SCALED == "outputs" and GATED)
    blocks = tl.cdiv(in_features, 128)
    block = scales + tl.program_id(0) * OUTPUTS // 128 * blocks
    up_block = block + out_features // 128 * blocks
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
        total += tile.to(tl.float32) * _in_blocks(row, block, here, in_features, SCALED)[None, :]
        if GATED:
            up_row = _in_blocks(row, up_block, here, in_features, SCALED)
            up_total += up_tile.to(tl.float32) * up_row[None, :]
        mask = inside[:, None] & (here[None, :] + INPUTS < in_features)
        tile = tl.load(first + start + INPUTS, mask=mask, other=0.0)
        if GATED:
            up_tile = tl.load(second + start + INPUTS, mask=mask, other=0.0)
    result = tl.sum(total, axis=1)
    up = tl.sum(up_total, axis=1)
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares) / in_features + eps)
        result *= inverse
        up *= inverse
    if SCALED == "outputs":
        result *= scale
        up *= up_scale
    result += added
    if GATED:
        result = activated(result, GATE) * (up + up_added)
    target = out + outputs
    if RESIDUAL:
        result += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _in_blocks(row, scales, here, in_features, SCALED: tl.constexpr):
    """A row's inputs `here` times the scales of their blocks, if the weight has these."""
    if SCALED == "blocks":
        row *= tl.load(scales + here // 128, mask=here < in_features, other=0.0)
    return row


@triton.jit
def _loaded(values, mask, PRESENT: tl.constexpr):
    """A bias or scales in float32, before the rows arrive. 0 without them."""
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
def _as(tile, dtype: tl.constexpr, PDL: tl.constexpr):
    """Weights in the rows' type.

    On a GPU, from e4m3 to bfloat16, two at a time: bits go to their places, and 2^120 corrects the
    exponent. The hardware's conversion has a rate below the memory's. NaN becomes 480.
    """
    if PDL and tile.dtype == tl.float8e4nv and dtype == tl.bfloat16:
        widened = tl.inline_asm_elementwise(
            """{
            .reg .b32 bits, signs, power;
            prmt.b32 bits, $1, 0, 0x1404;
            and.b32 signs, bits, 0x80008000;
            shr.u32 bits, bits, 4;
            lop3.b32 bits, bits, 0x07f007f0, signs, 0xea;
            mov.b32 power, 0x7b807b80;
            mul.bf16x2 $0, bits, power;
            }""",
            "=r,r",
            [tile],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        widened = tile.to(dtype)
    return widened


@triton.jit
def _added(total, tile, columns, block_scale, SCALED: tl.constexpr, PDL: tl.constexpr):
    """`total` plus the product of weights in one block and the rows' columns."""
    tile = _as(tile, columns.dtype, PDL)
    if SCALED == "blocks":
        tl.static_assert(tile.shape[1] <= 128)
        total += tl.dot(tile, columns, input_precision="ieee") * tl.load(block_scale)
    else:
        total = tl.dot(tile, columns, total, input_precision="ieee")
    return total


@triton.jit
def _few_rows(
    rows, weight, scales, bias, out, out_features, in_features, count, stride,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr,
    PDL: tl.constexpr, AHEAD: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
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
    scale = _loaded(scales + outputs, inside, SCALED == "outputs")
    up_scale = _loaded(scales + out_features + outputs, inside, SCALED == "outputs" and GATED)
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
        total = _added(total, tile, columns, block + start // 128, SCALED, PDL)
        if GATED:
            tile = tl.load(first + half + start, mask=mask, other=0.0)
            up_total = _added(up_total, tile, columns, up_block + start // 128, SCALED, PDL)
    if SCALED == "outputs":
        total *= scale[:, None]
        up_total *= up_scale[:, None]
    total += added[:, None]
    if GATED:
        total = activated(total, GATE) * (up_total + up_added[:, None])
    target = out + which[None, :].to(tl.int64) * out_features + outputs[:, None]
    mask = inside[:, None] & present[None, :]
    if RESIDUAL:
        total += tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=mask)
