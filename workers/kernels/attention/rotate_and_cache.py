"""Rotary embedding and the KV cache's new tokens, in one pass over a step's heads."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl


def rotate_and_cache(
    qkv: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
    out: torch.Tensor,
) -> None:
    """Rotate the queries and keys of `qkv`, and write keys and values to the KV cache.

    qkv, out     [T', H + 2 Hkv, D]: queries, keys, values, contiguous; T' >= T. `out` receives the
                 rotated queries and keys and the values, and may be `qkv`.
    table        float32[max_position, D]: cosines of the D / 2 pairs (i, i + D / 2), then sines
                 (Su et al. 2021, arXiv:2104.09864); contiguous
    positions    int64[T'], kv_indices int64[T]: block * page + offset
    keys, values [blocks, page, Hkv, D], contiguous
    Tokens from T on, a step's padding, are left alone in `out`. Values that are not finite are
    cached as 0.
    """
    new_keys = qkv[:, num_heads : num_heads + keys.shape[2]]
    new_values = qkv[:, num_heads + keys.shape[2] :]
    rotation = Rotation(qkv, table, positions, out)
    _launch(num_heads, rotation, new_keys, new_values, kv_indices, keys, values)


def write_kv(
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    kv_indices: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Write keys and values [T, Hkv, D], dense within a token, to the KV cache as they are."""
    _launch(0, None, new_keys, new_values, kv_indices, keys, values)


class Rotation(NamedTuple):
    """Which heads to rotate, by which table and positions, and the output."""

    qkv: torch.Tensor
    table: torch.Tensor
    positions: torch.Tensor
    out: torch.Tensor


def _launch(
    num_heads: int,
    rotation: Rotation | None,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    kv_indices: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """One program a token; without a rotation, for keys and values only."""
    kv_heads, head_dim = new_keys.shape[1:]
    rotate = rotation is not None
    rotation = rotation or Rotation(new_keys, new_keys, kv_indices, new_keys)
    _write[(len(kv_indices),)](
        rotation.qkv,
        new_keys,
        new_values,
        rotation.table,
        rotation.positions,
        rotation.out,
        kv_indices,
        keys,
        values,
        new_keys.stride(0),
        new_values.stride(0),
        HEADS=num_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        ROTATE=rotate,
        IN_PLACE=rotation.out is rotation.qkv,
        HEAD_BLOCK=triton.next_power_of_2(max(num_heads, 1)),
        KV_HEAD_BLOCK=triton.next_power_of_2(kv_heads),
        HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
        **pdl(new_keys),
    )


@triton.jit(do_not_specialize=["positions", "kv_indices"])
def _write(
    queries, new_keys, new_values, table, positions, out, kv_indices, keys, values,
    key_stride, value_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTATE: tl.constexpr,
    IN_PLACE: tl.constexpr, HEAD_BLOCK: tl.constexpr, KV_HEAD_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    kv_index = tl.load(kv_indices + token)
    kv_heads, pairs = tl.arange(0, KV_HEAD_BLOCK)[:, None], tl.arange(0, HALF_BLOCK)[None, :]
    first = kv_heads * HEAD_DIM + pairs
    inside = (kv_heads < KV_HEADS) & (pairs < HALF)
    own_keys = new_keys + token * key_stride + first
    own_values = new_values + token * value_stride + first
    # Everything is read before anything is written: loads do not pass stores that may overlap them,
    # and in a small tile several threads hold the same element, which only one of them writes.
    low = tl.load(own_keys, mask=inside)
    high = tl.load(own_keys + HALF, mask=inside)
    low_value = tl.load(own_values, mask=inside)
    high_value = tl.load(own_values + HALF, mask=inside)
    if ROTATE:
        angle = table + tl.load(positions + token) * HEAD_DIM + pairs
        cos = tl.load(angle, mask=pairs < HALF, other=0.0)
        sin = tl.load(angle + HALF, mask=pairs < HALF, other=0.0)
        heads = tl.arange(0, HEAD_BLOCK)[:, None]
        own_queries = heads * HEAD_DIM + pairs
        within = (heads < HEADS) & (pairs < HALF)
        queries += token * key_stride
        low_query = tl.load(queries + own_queries, mask=within)
        high_query = tl.load(queries + own_queries + HALF, mask=within)
        tl.debug_barrier()
        low_query, high_query = _rotate(low_query, high_query, cos, sin)
        out += token * key_stride
        tl.store(out + own_queries, low_query, mask=within)
        tl.store(out + own_queries + HALF, high_query, mask=within)
        low, high = _rotate(low, high, cos, sin)
        out_keys = out + HEADS * HEAD_DIM + first
        tl.store(out_keys, low, mask=inside)
        tl.store(out_keys + HALF, high, mask=inside)
        if not IN_PLACE:
            out_values = out_keys + KV_HEADS * HEAD_DIM
            tl.store(out_values, low_value, mask=inside)
            tl.store(out_values + HALF, high_value, mask=inside)
    cached = kv_index * (KV_HEADS * HEAD_DIM) + first
    tl.store(keys + cached, low, mask=inside)
    tl.store(keys + cached + HALF, high, mask=inside)
    tl.store(values + cached, _finite(low_value), mask=inside)
    tl.store(values + cached + HALF, _finite(high_value), mask=inside)


@triton.jit
def _finite(values):
    """0 in place of values that are not finite. A kernel that loads whole pages multiplies what an
    earlier request left behind the end of a context by a weight of 0, and the product must be 0."""
    return tl.where(tl.abs(values.to(tl.float32)) < float("inf"), values, 0.0).to(values.dtype)


@triton.jit
def _rotate(low, high, cos, sin):
    """Rotate the pairs (low, high) by their angles, in float32, rounded once."""
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    rotated_low = wide_low * cos - wide_high * sin
    rotated_high = wide_high * cos + wide_low * sin
    return rotated_low.to(low.dtype), rotated_high.to(high.dtype)
