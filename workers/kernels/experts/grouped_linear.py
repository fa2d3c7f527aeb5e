"""Products of rows that are grouped by experts with each expert's weight, in one launch.

A program takes a tile of one expert's rows and some of its outputs. Which expert's, it finds from
the groups' ends, which are on the device: there are as many programs as any groups could need. Few
rows are on a tensor core's narrow side, with outputs on the other. Weights are in the rows' type,
in FP8 with rows in FP8, or in MXFP4, which is multiplied as the rows' type.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from workers.contract.quantization import FP4_GROUP
from workers.device.tuning import GroupedTile
from workers.kernels.assembler import ASSEMBLED
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.linear.fused import Fp8Weight, FusedGate, Mxfp4Weight
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows
from workers.kernels.linear.rowwise import activated

FP4_TILE = 4 * FP4_GROUP
"""Inputs of a tile in MXFP4, which are in as many words as a group has inputs. Part p of word w is
input 32 p + w."""

_FP4_BITS = ((15, 7, 6), (12, 4, 3), (9, 1, 0), (14, 10, 13))
"""The bits of a word's parts for sign, exponent and mantissa. Shifted left by 0, 3 or 6, the first
three parts have them where bfloat16 has its sign and its lowest bits."""

_MISSING = tl.constexpr(2.0**64)
"""What products lack whose numbers are times 2 ** -126, and their powers times 2 ** 62."""


class PackedFp4(NamedTuple):
    """MXFP4 as `grouped_linear` reads it: `words` int16[out, in' / 4], and `scales` int32[out,
    in' / 128], each of four bytes, exponents plus 189. `in'` is of whole tiles."""

    words: torch.Tensor
    scales: torch.Tensor


def packed(weight: Mxfp4Weight) -> PackedFp4:
    """The weight's numbers in the order of tiles, with zeros added. Scales are at most 2 ** 65, and
    those below 2 ** -61 lose bits."""
    missing = -2 * weight.blocks.shape[1] % FP4_TILE
    blocks = F.pad(weight.blocks, (0, missing // 2))
    numbers = torch.stack([blocks & 15, blocks >> 4], dim=-1).view(len(blocks), -1, 4, FP4_GROUP)
    words = torch.zeros_like(numbers[:, :, 0], dtype=torch.int16)
    for part, (sign, exponent, mantissa) in enumerate(_FP4_BITS):
        number = numbers[:, :, part].short()
        words |= (number >> 3 << sign) | ((number >> 1 & 3) << exponent)
        words |= (number & 1) << mantissa
    scales = F.pad(weight.scales + 62, (0, missing // FP4_GROUP))
    return PackedFp4(words.flatten(1), scales.view(torch.int32))


class Pairs(NamedTuple):
    """The groups of rows: `order` int32[M] of pairs, `ends` int32[E] of groups, K experts a token.
    Rows are the tokens', with outputs in the groups' order, or the other way round."""

    order: torch.Tensor
    ends: torch.Tensor
    active: int
    of_tokens: bool


def grouped_linear(
    rows: torch.Tensor | QuantizedRows,
    weight: torch.Tensor | Fp8Weight | PackedFp4,
    pairs: Pairs,
    tile: GroupedTile,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    gate: FusedGate | None = None,
) -> torch.Tensor:
    """[N or M, in] -> [M, out] in `dtype`, with a gate half as many outputs. The weight is
    [E * out, in], the bias [E * out]; everything is contiguous."""
    count, experts, parts = len(pairs.order), len(pairs.ends), 1 if gate is None else 2
    if isinstance(rows, QuantizedRows):
        values, row_scales, stride = rows.values, rows.scales, rows.scales.stride(1)
    else:
        values, row_scales, stride = rows, None, 0
    kind, numbers, scales = _kept(weight)
    width = len(numbers) // experts // parts
    out = values.new_empty((count, width), dtype=dtype)
    # Each group that is there has at most one tile that is not full.
    tiles = (count + min(experts, count) * (tile.rows - 1)) // tile.rows
    function, alpha, limit = gate or ("", 0.0, 0.0)
    _grouped_linear[(tiles * triton.cdiv(width, tile.outputs),)](
        *(values, row_scales, numbers, scales, bias, pairs.order, pairs.ends, out),
        *(values.shape[1], stride, width, numbers.shape[1], alpha, limit),
        EXPERTS=experts,
        BLOCK=triton.next_power_of_2(experts),
        ACTIVE=pairs.active,
        OF_TOKENS=pairs.of_tokens,
        KIND=kind,
        GATE=function,
        PARTS=parts,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=_inputs(kind, tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl(out),
    )
    return out


def shared_bytes(
    tile: GroupedTile, weight: torch.Tensor | Fp8Weight | PackedFp4, dtype: torch.dtype
) -> float:
    """The most of a block's shared memory that all stages of a tile take. Rows that are not in FP8
    are in `dtype`."""
    kind, numbers, _ = _kept(weight)
    of_rows = numbers.itemsize if kind in ("block", "channel") else dtype.itemsize
    of_weight = numbers.itemsize / (4 if kind == "fp4" else 1)
    return tile.stages * _inputs(kind, tile) * (tile.rows * of_rows + tile.outputs * of_weight)


def _inputs(kind: str, tile: GroupedTile) -> int:
    """Inputs of an iteration, for a weight that is kept so."""
    return FP4_TILE if kind == "fp4" else GROUP if kind == "block" else tile.inputs


def _kept(
    weight: torch.Tensor | Fp8Weight | PackedFp4,
) -> tuple[str, torch.Tensor, torch.Tensor | None]:
    """How a weight is kept, its numbers, and any scales."""
    if isinstance(weight, torch.Tensor):
        return "dense", weight, None
    if isinstance(weight, PackedFp4):
        return "fp4", weight.words, weight.scales
    return "block" if weight.in_blocks else "channel", weight.values, weight.scales


@triton.jit
def _group_of(ends, tile, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a tile of rows, the tile's first row, and where the expert's rows end. No
    expert, EXPERTS, behind the last tile."""
    expert = tl.arange(0, BLOCK)
    end = tl.load(ends + expert, mask=expert < EXPERTS, other=0)
    start = tl.load(ends + expert - 1, mask=(expert > 0) & (expert < EXPERTS), other=0)
    tiles = tl.cdiv(tl.maximum(end - start, 0), ROWS)
    before = tl.cumsum(tiles, axis=0)
    behind = (before <= tile) & (expert < EXPERTS)
    own = tl.sum(behind.to(tl.int32), axis=0)
    first = tile - tl.sum(tl.where(behind, tiles, 0), axis=0)
    start = tl.load(ends + own - 1, mask=(own > 0) & (own < EXPERTS), other=0)
    return own, start + first * ROWS, tl.load(ends + own, mask=own < EXPERTS, other=0)


@triton.jit(do_not_specialize=["stride"])
def _grouped_linear(
    rows, row_scales, weight, scales, bias, order, ends, out, row_size, stride, width, size, alpha,
    limit, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ACTIVE: tl.constexpr,
    OF_TOKENS: tl.constexpr, KIND: tl.constexpr, GATE: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    output_tiles = tl.cdiv(width, OUTPUTS)
    output = tl.program_id(0) % output_tiles * OUTPUTS
    expert, first, end = _group_of(
        ends, tl.program_id(0) // output_tiles, EXPERTS, BLOCK, ROWS
    )  # fmt: skip
    if expert >= EXPERTS:
        return
    # Rows and outputs past the last are read as the last, and not written.
    places = first + tl.arange(0, ROWS)
    pairs = tl.load(order + tl.minimum(places, end - 1))
    sources = (pairs // ACTIVE if OF_TOKENS else tl.minimum(places, end - 1)).to(tl.int64)
    both = tl.arange(0, PARTS * OUTPUTS)
    inside = tl.minimum(output + both % OUTPUTS, width - 1)
    outputs = (expert.to(tl.int64) * PARTS + both // OUTPUTS) * width + inside
    own_rows, own_weight = rows + sources * row_size, weight + outputs * size
    if KIND == "fp4":
        total = _multiply_fp4(
            own_rows, own_weight, scales + outputs * (size // 32), row_size, ROWS, PARTS * OUTPUTS,
            INPUTS,
        )  # fmt: skip
    else:
        total = _multiply(
            own_rows, own_weight, row_scales, sources, scales, outputs, stride, row_size,
            KIND == "block", ROWS, PARTS * OUTPUTS, INPUTS,
        )  # fmt: skip
    if KIND == "channel":
        total *= tl.load(row_scales + sources)[:, None] * tl.load(scales + outputs)[None, :]
    if bias is not None:
        total += tl.load(bias + outputs).to(tl.float32)[None, :]
    if PARTS == 2:
        gate, up = total.reshape(ROWS, 2, OUTPUTS).permute(0, 2, 1).split()
        if GATE == "clamped":
            gate, up = tl.minimum(gate, limit), tl.minimum(tl.maximum(up, -limit), limit)
            total = (up + 1) * gate / (1 + tl.exp(-alpha * gate))
        else:
            total = activated(gate, GATE) * up
    targets = (places if OF_TOKENS else pairs).to(tl.int64)
    columns = output + tl.arange(0, OUTPUTS)
    written = (places < end)[:, None] & (columns < width)[None, :]
    numbers = total.to(out.dtype.element_ty)
    tl.store(out + targets[:, None] * width + columns[None, :], numbers, mask=written)


@triton.jit
def _multiply(
    own_rows, own_weight, row_scales, sources, scales, outputs, stride, size,
    IN_BLOCKS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """The rows by the weight's outputs, float32[ROWS, OUTPUTS]. With IN_BLOCKS scales are of 128 x
    128 numbers of the weight, and of 128 of a row."""
    # A tensor core's wide side has 64.
    WIDE: tl.constexpr = ROWS >= 64
    total = tl.zeros((ROWS, OUTPUTS) if WIDE else (OUTPUTS, ROWS), tl.float32)
    inputs = tl.arange(0, INPUTS)
    for start in range(0, size, INPUTS):
        known = (start + inputs < size)[None, :]
        row = tl.load(own_rows[:, None] + (start + inputs)[None, :], mask=known, other=0.0)
        own = tl.load(own_weight[:, None] + (start + inputs)[None, :], mask=known, other=0.0)
        first, second = (row, own) if WIDE else (own, row)
        if IN_BLOCKS:
            group = start // INPUTS
            scale = tl.load(scales + outputs // INPUTS * tl.cdiv(size, INPUTS) + group)
            row_scale = tl.load(row_scales + group.to(tl.int64) * stride + sources)
            factors = (row_scale, scale) if WIDE else (scale, row_scale)
            part = tl.dot(first, tl.trans(second))
            total += part * (factors[0][:, None] * factors[1][None, :])
        else:
            total = tl.dot(first, tl.trans(second), total, input_precision="ieee")
    return total if WIDE else tl.trans(total)


@triton.jit
def _multiply_fp4(
    own_rows, own_words, own_scales, size, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):  # fmt: skip
    """Likewise for a weight in MXFP4.

    Its numbers go from registers to the tensor cores, and so to their wide side. With a copy in
    shared memory tiles of 64 rows take longer.
    """
    WORDS: tl.constexpr = INPUTS // 4
    dtype: tl.constexpr = own_rows.dtype.element_ty
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    inputs, words = tl.arange(0, INPUTS), tl.arange(0, WORDS)
    for tile in range(tl.cdiv(size, INPUTS)):
        numbers = _fp4_numbers(tl.load(own_words[:, None] + (tile * WORDS + words)[None, :]))
        powers = tl.load(own_scales + tile)
        here = tile * INPUTS + inputs
        row = tl.load(own_rows[:, None] + here[None, :], mask=(here < size)[None, :], other=0.0)
        even = tl.join(_scaled(numbers[0], powers), _scaled(numbers[2], powers >> 16))
        odd = tl.join(_scaled(numbers[1], powers >> 8), _scaled(numbers[3], powers >> 24))
        # [outputs, words, bits of the part from the highest]; a thread has a word's parts.
        own = tl.join(even, odd).permute(0, 2, 3, 1).reshape(OUTPUTS, INPUTS)
        if dtype != tl.bfloat16:
            own = (own.to(tl.float32) * _MISSING).to(dtype)
        total = tl.dot(own, tl.trans(row), total, input_precision="ieee")
    return tl.trans(total * _MISSING if dtype == tl.bfloat16 else total)


@triton.jit
def _scaled(numbers, powers):
    """Numbers times the powers in the lowest bytes."""
    return numbers * _of_bits((powers & 255) << 7).to(numbers.dtype)[:, None]


@triton.jit
def _fp4_numbers(words):
    """The parts of words, numbers in E2M1, in bfloat16 and times 2 ** -126."""
    if ASSEMBLED:
        numbers = tl.inline_asm_elementwise(
            "{ .reg .b32 a, b, c; and.b32 $0, $4, 0x81C081C0;"
            "shl.b32 a, $4, 3; and.b32 $1, a, 0x81C081C0;"
            "shl.b32 a, $4, 6; and.b32 $2, a, 0x81C081C0;"
            "shl.b32 a, $4, 1; shr.b32 b, $4, 3; shr.b32 c, $4, 7; and.b32 a, a, 0x80008000;"
            "lop3.b32 a, b, 0x01800180, a, 0xEA; lop3.b32 $3, c, 0x00400040, a, 0xEA; }",
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.bfloat16,) * 4,
            is_pure=True,
            pack=2,
        )
    else:
        bits = words.to(tl.int32)
        last = ((bits << 1) & 0x8000) | ((bits >> 3) & 0x0180) | ((bits >> 7) & 0x0040)
        first, second = _of_bits(bits & 0x81C0), _of_bits(bits << 3 & 0x81C0)
        numbers = first, second, _of_bits(bits << 6 & 0x81C0), _of_bits(last)
    return numbers


@triton.jit
def _of_bits(bits):
    """The numbers of bfloat16's bits, in float32."""
    return (bits << 16).to(tl.float32, bitcast=True)
