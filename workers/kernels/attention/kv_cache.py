"""Writes of the KV cache: new tokens, with norms and rotary embedding, and copies of blocks."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.attention.fp8 import inverse
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.layers.norm import QKNorm
from workers.layers.rotary import RotationTable


class KVTarget(NamedTuple):
    """Where a step's keys and values go.

    kv_indices    int64[T], block * page + offset
    keys, values  [blocks, page, Hkv, D], contiguous
    scales        of both, int32[blocks, Hkv, page], if they are FP8
    """

    kv_indices: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None = None


def rotate_and_cache(
    qkv: torch.Tensor,
    rotation: RotationTable | None,
    positions: torch.Tensor,
    num_heads: int,
    out: torch.Tensor,
    target: KVTarget | None,
    qk_norm: QKNorm | None = None,
) -> None:
    """Rotate the queries and keys of `qkv`, and write keys and values to the KV cache.

    qkv, out       [T', H + 2 Hkv, D]: queries, keys, values, contiguous; T' >= T. `out` receives
                   the rotated queries and keys and the values, and may be `qkv`. Hkv may be 0.
    rotation       of the R / 2 first pairs (i, i + `apart`) (Su et al. 2021, arXiv:2104.09864);
                   its table is contiguous. The other dimensions are not rotated. None: none is.
    positions      int64[T']
    target         of T tokens; None where nothing is cached: all T' are rotated
    qk_norm        RMSNorms of queries and keys, weights of any dtype, and perhaps of values

    All is computed in float32 and rounded once. Tokens from T on are left alone in `out`. Values
    that are not finite are cached as 0.
    """
    values = (qkv.shape[1] + num_heads) // 2
    new_keys, new_values = qkv[:, num_heads:values], qkv[:, values:]
    tensors = qkv, positions, out
    _launch(new_keys, new_values, target, tensors, num_heads, rotation, qk_norm)


def write_kv(new_keys: torch.Tensor, new_values: torch.Tensor, target: KVTarget) -> None:
    """Write keys and values [T, Hkv, D], dense within a token, to the KV cache as they are, or in
    FP8."""
    _launch(new_keys, new_values, target, (new_keys,) * 3)


_MOST_PAIRS = 4096
"""Of queries' dimensions that 4 warps hold in registers."""


def _launch(
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    target: KVTarget | None,
    tensors: tuple[torch.Tensor, ...],
    num_heads: int = 0,
    rotation: RotationTable | None = None,
    qk_norm: QKNorm | None = None,
) -> None:
    """One program a token. Any tensor stands in for an operand that the kernel does not touch."""
    kv_heads, head_dim = new_keys.shape[1:]
    qkv, positions, out = tensors
    table, apart, query_factors = rotation or RotationTable(qkv, head_dim // 2)
    norm = qk_norm or QKNorm(table, table, 0.0)
    kv_indices, keys, values, scales = target or KVTarget(positions, new_keys, new_values)
    head_block = triton.next_power_of_2(max(num_heads, 1))
    half_block = triton.next_power_of_2(head_dim // 2)
    _write[(len(kv_indices),)](
        *(qkv, new_keys, new_values, table, positions, out),
        *(kv_indices, keys, values, scales),
        *(norm.query, norm.key, norm.eps, query_factors),
        *(new_keys.stride(0), new_values.stride(0)),
        HEADS=num_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=0 if rotation is None else table.shape[1],
        APART=apart,
        NORM="" if qk_norm is None else "rotated" if norm.rotated else "first",
        QUERY_ROW=0 if qk_norm is None else len(norm.query),
        KEY_ROW=0 if qk_norm is None else len(norm.key),
        NORM_VALUES=norm.values,
        CACHE=target is not None,
        PAGE=keys.shape[1],
        IN_PLACE=out is qkv,
        HEAD_BLOCK=head_block,
        KV_HEAD_BLOCK=triton.next_power_of_2(max(kv_heads, 1)),
        HALF_BLOCK=half_block,
        num_warps=4 if head_block * half_block <= _MOST_PAIRS else 8,
        **pdl(new_keys),
    )


@triton.jit(do_not_specialize=["positions", "kv_indices"])
def _write(
    queries, new_keys, new_values, table, positions, out, kv_indices, keys, values, scales,
    query_norm, key_norm, eps, query_factors, key_stride, value_stride, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, APART: tl.constexpr,
    NORM: tl.constexpr, QUERY_ROW: tl.constexpr, KEY_ROW: tl.constexpr, NORM_VALUES: tl.constexpr,
    CACHE: tl.constexpr, PAGE: tl.constexpr, IN_PLACE: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    KV_HEAD_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF_BLOCK)[None, :]
    low_at, high_at = _dimensions(pairs, HEAD_DIM, APART)
    kv_heads = tl.arange(0, KV_HEAD_BLOCK)[:, None]
    inside = (kv_heads < KV_HEADS) & (pairs < HEAD_DIM // 2)
    low_key, high_key = kv_heads * HEAD_DIM + low_at, kv_heads * HEAD_DIM + high_at
    new_keys, new_values = new_keys + token * key_stride, new_values + token * value_stride
    # Everything is read before anything is written: in a small tile several threads hold the same
    # element, which only one of them writes.
    low, high = _load(new_keys, low_key, high_key, inside)
    low_value, high_value = _load(new_values, low_key, high_key, inside)
    if NORM_VALUES:
        low_value, high_value = _normed_values(low_value, high_value, eps, HEAD_DIM)
    if CACHE:
        kv_index = tl.load(kv_indices + token)
        cached = kv_index * (KV_HEADS * HEAD_DIM)
    if HEADS:
        turning = pairs < ROTARY_DIM // 2
        angle = table + tl.load(positions + token) * ROTARY_DIM + pairs
        cos = tl.load(angle, mask=turning, other=1.0)
        sin = tl.load(angle + ROTARY_DIM // 2, mask=turning, other=0.0)
        heads = tl.arange(0, HEAD_BLOCK)[:, None]
        within = (heads < HEADS) & (pairs < HEAD_DIM // 2)
        low_query, high_query = heads * HEAD_DIM + low_at, heads * HEAD_DIM + high_at
        queries += token * key_stride
        low_turned, high_turned = _load(queries, low_query, high_query, within)
        weights = _weights(query_norm, heads, low_at, high_at, within, HEAD_DIM, QUERY_ROW)
        key_weights = _weights(key_norm, kv_heads, low_at, high_at, inside, HEAD_DIM, KEY_ROW)
        tl.debug_barrier()
        out += token * key_stride
        query_cos, query_sin = _grown(cos, sin, query_factors, positions + token)
        low_turned, high_turned = _turned(
            *(low_turned, high_turned, query_cos, query_sin),
            *(weights, eps, HEAD_DIM, QUERY_ROW, NORM),
        )
        _store(out, low_query, high_query, low_turned, high_turned, within)
        low, high = _turned(low, high, cos, sin, key_weights, eps, HEAD_DIM, KEY_ROW, NORM)
        _store(out + HEADS * HEAD_DIM, low_key, high_key, low, high, inside)
        if NORM_VALUES or not IN_PLACE:
            out_values = out + (HEADS + KV_HEADS) * HEAD_DIM
            _store(out_values, low_key, high_key, low_value, high_value, inside)
    if CACHE:
        low_value, high_value = _finite(low_value), _finite(high_value)
        if scales is not None:
            low, high, key_scales = _quantized(low, high)
            low_value, high_value, value_scales = _quantized(low_value, high_value)
            at = (kv_index // PAGE * KV_HEADS + kv_heads) * PAGE + kv_index % PAGE
            tl.store(scales + at, (key_scales >> 16) | value_scales, mask=kv_heads < KV_HEADS)
        _store(keys + cached, low_key, high_key, low, high, inside)
        _store(values + cached, low_key, high_key, low_value, high_value, inside)


@triton.jit
def _quantized(low, high):
    """Both halves of heads [H, D / 2] in E4M3, and the bits of their scales, int32[H, 1]: see
    `workers/attention/fp8_numbers.py`."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    largest = tl.max(tl.maximum(tl.abs(low), tl.abs(high)), axis=1, keep_dims=True)
    exponent = tl.maximum(((largest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8, 1)
    scales = exponent << 23
    factor = inverse(scales.to(tl.float32, bitcast=True))
    return (low * factor).to(tl.float8e4nv), (high * factor).to(tl.float8e4nv), scales


@triton.jit
def _dimensions(pairs, HEAD_DIM: tl.constexpr, APART: tl.constexpr):
    """The two dimensions of each pair: (i, i + APART) while these are APART apart, then others."""
    low, high = pairs, pairs + HEAD_DIM // 2
    if APART < HEAD_DIM // 2:
        turning = pairs < APART
        low = tl.where(turning, pairs, pairs + APART)
        high = tl.where(turning, pairs + APART, pairs + HEAD_DIM // 2)
    return low, high


@triton.jit
def _load(start, low_at, high_at, mask):
    low = tl.load(start + low_at, mask=mask, other=0.0)
    return low, tl.load(start + high_at, mask=mask, other=0.0)


@triton.jit
def _store(start, low_at, high_at, low, high, mask):
    tl.store(start + low_at, low, mask=mask)
    tl.store(start + high_at, high, mask=mask)


@triton.jit
def _finite(values):
    """0 in place of values that are not finite: kernels that load whole pages multiply what is
    behind a context by a weight of 0."""
    return tl.where(tl.abs(values.to(tl.float32)) < float("inf"), values, 0.0).to(values.dtype)


@triton.jit
def _weights(weight, heads, low_at, high_at, inside, HEAD_DIM: tl.constexpr, ROW: tl.constexpr):
    """A norm's weight at the two dimensions of each pair, in float32: of one head for all, or of
    the `heads` in a row. Without a norm nothing is read."""
    low, high = 0.0, 0.0
    if ROW > HEAD_DIM:
        low_at, high_at = heads * HEAD_DIM + low_at, heads * HEAD_DIM + high_at
        low = tl.load(weight + low_at, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(weight + high_at, mask=inside, other=0.0).to(tl.float32)
    elif ROW:
        low = tl.load(weight + low_at, mask=low_at < HEAD_DIM, other=0.0).to(tl.float32)
        high = tl.load(weight + high_at, mask=high_at < HEAD_DIM, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _normed(low, high, weights, eps, HEAD_DIM: tl.constexpr, ROW: tl.constexpr):
    """RMSNorm of rows of so many numbers, each a head or all heads together, by the weights of both
    halves. `low` and `high` are 0 outside of them."""
    squares = tl.sum(low * low + high * high, axis=1, keep_dims=True)
    if ROW > HEAD_DIM:
        squares = tl.sum(squares, axis=0, keep_dims=True)
    inverse = tl.rsqrt(squares / ROW + eps)
    return low * (inverse * weights[0]), high * (inverse * weights[1])


@triton.jit
def _normed_values(low, high, eps, HEAD_DIM: tl.constexpr):
    """RMSNorm of heads without a weight, rounded once."""
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    wide_low, wide_high = _normed(wide_low, wide_high, (1.0, 1.0), eps, HEAD_DIM, HEAD_DIM)
    return wide_low.to(low.dtype), wide_high.to(low.dtype)


@triton.jit
def _grown(cos, sin, query_factors, position):
    """A rotation of queries times the factor of the position at an address, if there are any."""
    if query_factors is not None:
        factor = tl.load(query_factors + tl.load(position))
        cos, sin = cos * factor, sin * factor
    return cos, sin


@triton.jit
def _turned(
    low, high, cos, sin, weights, eps, HEAD_DIM: tl.constexpr, ROW: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Rotate the pairs (low, high) by their angles, with a norm before or behind, rounded once."""
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    if NORM == "first":
        wide_low, wide_high = _normed(wide_low, wide_high, weights, eps, HEAD_DIM, ROW)
    turned = wide_low * cos - wide_high * sin
    wide_low, wide_high = turned, wide_high * cos + wide_low * sin
    if NORM == "rotated":
        wide_low, wide_high = _normed(wide_low, wide_high, weights, eps, HEAD_DIM, ROW)
    return wide_low.to(low.dtype), wide_high.to(low.dtype)


_NUMBERS = 8192
"""Numbers a program copies."""


def copy_blocks(cache: torch.Tensor, copies: torch.Tensor) -> None:
    """Copy blocks of `cache` [layers, 2, blocks, ...], contiguous, by `copies` int32[N, 2]: (from,
    to), N > 0. No block is copied to twice, or to by one copy and from by another."""
    numbers = cache[0, 0, 0].numel()
    assert cache.is_contiguous()
    _copy_blocks[(triton.cdiv(numbers, _NUMBERS), len(copies), cache.shape[0] * cache.shape[1])](
        cache,
        copies,
        cache.shape[2],
        NUMBERS=numbers,
        SIZE=_NUMBERS,
        num_warps=8,
        **pdl(cache),
    )


@triton.jit(do_not_specialize=["copies", "blocks"])
def _copy_blocks(
    cache, copies, blocks, NUMBERS: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr
):
    wait_for_previous(PDL)
    copy, plane = copies + tl.program_id(1) * 2, tl.program_id(2).to(tl.int64) * blocks
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    source, target = plane + tl.load(copy), plane + tl.load(copy + 1)
    found = tl.load(cache + source * NUMBERS + offsets, mask=offsets < NUMBERS)
    tl.store(cache + target * NUMBERS + offsets, found, mask=offsets < NUMBERS)
