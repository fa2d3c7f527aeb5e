"""Device functions of all attention kernels: a running softmax over tiles and parts of keys."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from workers.kernels.attention.fp8 import MAX_WEIGHT, ratios, widened

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def before_any_key(QUERIES: tl.constexpr, DIM_BLOCK: tl.constexpr):
    """The state of a running softmax (see `fold_tile`) at its start."""
    peak, total = tl.full((QUERIES,), float("-inf"), tl.float32), tl.zeros((QUERIES,), tl.float32)
    return peak, total, tl.zeros((QUERIES, DIM_BLOCK), tl.float32)


@triton.jit
def with_sinks(sinks, heads, counted, peak, total):
    """The state once queries of these `heads` [M] have given a sink its score, where `counted`."""
    if sinks is not None:
        score = tl.load(sinks + heads, mask=counted, other=float("-inf"))
        peak, total = score * LOG2_E, tl.where(counted, 1.0, total)
    return peak, total


@triton.jit
def fold_tile(
    queries, keys, values, scales, visible, scale, softcap, bias, peak, total, attended,
    MASKED: tl.constexpr, SOFTCAP: tl.constexpr, BIASED: tl.constexpr, MAY_SEE_NONE: tl.constexpr,
):  # fmt: skip
    """Fold a tile into a running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).

    queries [M, D], keys and values [N, D]; `visible` [M, N] or [1, N] is read only if MASKED, and
    `bias` [M, N] if BIASED. With MAY_SEE_NONE a query may have seen no key yet. The state is
    float32: peak [M] the greatest score, total [M] the sum of 2 ** (score - peak), and attended
    [M, D] that of values with these weights.

    In FP8, keys and values have `scales` [N], powers of two, and `scale` is [M, 1] (see
    `fp8.in_half`). They are multiplied as float16 into float32: Hopper sums products of FP8 in
    about 14 bits, which loses what one token of a long context says.
    """
    if scales is not None:
        keys = widened(keys, queries.dtype)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    scores *= scale if SOFTCAP or BIASED else scale * LOG2_E
    if scales is not None:
        scores *= scales[0][None, :]
    if SOFTCAP:
        scores = softcapped(scores, softcap)
    if BIASED:
        scores += bias
    if SOFTCAP or BIASED:
        scores *= LOG2_E
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher) if MAY_SEE_NONE else higher
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(peak - base)
    total = total * kept + tl.sum(weights, axis=1)
    attended = attended * kept[:, None]
    if scales is not None:
        largest = tl.max(scales[1], axis=0)
        weights *= ratios(scales[1], largest)[None, :]
        values = widened(values, queries.dtype)
        sums = tl.dot(weights.to(queries.dtype), values, input_precision="ieee")
        attended += sums * (largest / MAX_WEIGHT)
    else:
        attended = tl.dot(weights.to(values.dtype), values, attended, input_precision="ieee")
    return higher, total, attended


@triton.jit
def softcapped(scores, softcap):
    """softcap * tanh(scores / softcap)."""
    # tanh(x) = 1 - 2 / (exp(2 x) + 1), right where the exponential overflows too.
    return softcap - 2 * softcap / (tl.exp2(scores * (2 * LOG2_E / softcap)) + 1)


@triton.jit
def tile_kv_indices(table, start, end, PAGE: tl.constexpr, TILE: tl.constexpr):
    """KV indices int64[TILE] of the tokens from `start` on, a multiple of TILE. `table` has the
    row's block ids, read for tokens before `end` only.
    """
    tokens = start + tl.arange(0, TILE)
    if PAGE % TILE == 0:
        block = tl.load(table + start // PAGE, mask=start < end, other=0)
        kv_indices = block.to(tl.int64) * PAGE + start % PAGE + tl.arange(0, TILE)
    else:
        blocks = tl.load(table + tokens // PAGE, mask=tokens < end, other=0)
        kv_indices = blocks.to(tl.int64) * PAGE + tokens % PAGE
    return kv_indices


@triton.jit
def fold_parts(
    outputs, log_sum_exps, count, stride, offsets, dims, present, peak, total, attended,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Fold `count` parts of a prefix into a running softmax. `offsets` int64[M] are the queries'
    indices among the T * H = `stride` of a part, read where `present`.
    """
    for part in range(count):
        here = part * stride + offsets
        seen = tl.load(log_sum_exps + here, mask=present, other=float("-inf")) * LOG2_E
        inside = (seen > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
        partial = tl.load(
            outputs + here[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0
        )
        higher = tl.maximum(peak, seen)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight, kept = tl.exp2(seen - base), tl.exp2(peak - base)
        total = total * kept + weight
        attended = attended * kept[:, None] + partial.to(tl.float32) * weight[:, None]
        peak = higher
    return peak, total, attended
