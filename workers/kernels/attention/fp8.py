"""Device functions for keys and values in FP8 (`workers/attention/fp8_numbers.py`)."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from workers.kernels.assembler import ASSEMBLED

MAX_WEIGHT = tl.constexpr(2.0**15)
"""The largest weight where weights are float16: nearly all of that range is left below."""


@triton.jit
def widened(numbers, dtype: tl.constexpr):
    """E4M3 `numbers` in `dtype`, float16 or float32.

    Where a product reads a cast tile from shared memory, the compiler casts behind it, and loads
    single bytes. An assembler's instruction that is not pure stays before it: a decode program's
    loop has 491 instructions in place of 702.
    """
    if not ASSEMBLED or dtype == tl.float32:
        wide = numbers.to(dtype)
    else:
        wide = tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; "
            "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }",
            "=r,=r,r",
            [numbers],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return wide


@triton.jit
def inverse(powers):
    """1 / x of powers of two in float32, and 2 ** 127 of 0."""
    return (0x7F000000 - powers.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def in_half(queries, scale, scales):
    """Queries [M, D] in float16 for keys with `scales`, and the scale of their scores [M, 1].

    A query is times a power of two that makes its largest number 1 to 2. Without `scales` both are
    as they were, and so are queries in float32.

    E4M3 becomes float16 by one instruction for two numbers, bfloat16 by five, and products of
    float16 are as fast. All of E4M3 is exact in it, and so is a bfloat16 2 ** -15 of the largest.
    """
    if scales is not None:
        scale = tl.full((queries.shape[0], 1), scale, tl.float32)
        if queries.dtype != tl.float32:
            wide = queries.to(tl.float32)
            largest = tl.max(tl.abs(wide), axis=1, keep_dims=True)
            # Of 1.0 to 2.0 only the exponent stays. Its inverse must be finite too.
            power = largest.to(tl.int32, bitcast=True) & 0x7F800000
            power = tl.minimum(tl.maximum(power, 0x00800000), 0x7E800000)
            power = power.to(tl.float32, bitcast=True)
            queries = (wide * inverse(power)).to(tl.float16)
            scale *= power
    return queries, scale


@triton.jit
def ratios(scales, largest):
    """Scales of values [N] as ratios to `largest` / MAX_WEIGHT, to multiply their weights by. One
    token's large values so leave others their weights."""
    return scales * inverse(largest) * MAX_WEIGHT


@triton.jit
def load_scales(scales, kv_indices, kv_head, known, KV_HEADS: tl.constexpr, PAGE: tl.constexpr):
    """The scales float32[N] of keys and of values at `kv_indices` [N], 0 where not `known`. None if
    there are none."""
    found = None
    if scales is not None:
        at = (kv_indices // PAGE * KV_HEADS + kv_head) * PAGE + kv_indices % PAGE
        both = tl.load(scales + at, mask=known, other=0)
        keys = (both << 16).to(tl.float32, bitcast=True)
        found = keys, (both & -0x10000).to(tl.float32, bitcast=True)
    return found
