"""Causal attention of several queries a row (FlashAttention-2, Dao 2023, arXiv:2307.08691).

The query heads that share a KV head are packed into one tile, so that short chunks fill it.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.contract.model_config import AttentionKind
from workers.device.tuning import (
    PREFILL_TILE,
    PREFILL_TILE_FLOAT32,
    PREFILL_TILE_LARGE_HEADS,
    PREFILL_TILE_LARGEST_HEADS,
    PrefillTile,
)
from workers.kernels.attention.fp8 import in_half, load_scales
from workers.kernels.attention.online_softmax import (
    before_any_key,
    fold_parts,
    fold_tile,
    tile_kv_indices,
    with_sinks,
)
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.step.paged_step import PrefixParts


class Paging(NamedTuple):
    """The rows' contexts in a paged cache.

    block_tables         int32[S, max_blocks], dense in a row. Row slots[r] has row r's block ids.
    slots, context_lens  int32[R]
    scales               of a cache in FP8, int32[blocks, Hkv, page]
    """

    block_tables: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    scales: torch.Tensor | None = None


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_starts: torch.Tensor,
    max_query_len: int,
    kind: AttentionKind,
    out: torch.Tensor,
    paging: Paging,
    *,
    sinks: torch.Tensor | None = None,
    prefix: PrefixParts | None = None,
) -> None:
    """Causal attention of the last tokens of each context, by the scale, window and softcap of
    `kind`.

    queries      [T, H, D], dense within a token; row r's are [query_starts[r], query_starts[r + 1])
    keys, values [blocks, page, Hkv, D], contiguous; H is a multiple of Hkv
    query_starts int32[R + 1]; max_query_len >= any row's queries
    out          [T, H, D], contiguous; tokens outside all rows are left alone
    prefix       without a window: the first tokens of some rows' contexts, which precede
                 their queries and which these have attended to already
    """
    tile = tile_for(queries.shape[2], queries.dtype, PREFILL_TILE)
    _attend_with(
        tile, queries, keys, values, query_starts, max_query_len, kind, out, paging,
        sinks=sinks, prefix=prefix,
    )  # fmt: skip


def tile_for(head_dim: int, dtype: torch.dtype, usual: PrefillTile) -> PrefillTile:
    """Chosen by head size and dtype only, so that one compiled variant serves every step."""
    if dtype == torch.float32:
        return PREFILL_TILE_FLOAT32
    if head_dim > 256:
        return PREFILL_TILE_LARGEST_HEADS
    return PREFILL_TILE_LARGE_HEADS if head_dim > 128 else usual


def _attend_with(
    tile: PrefillTile,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_starts: torch.Tensor,
    max_query_len: int,
    kind: AttentionKind,
    out: torch.Tensor,
    paging: Paging,
    *,
    sinks: torch.Tensor | None = None,
    prefix: PrefixParts | None = None,
) -> None:
    """`attend` with a given tile."""
    heads, head_dim = queries.shape[1:]
    kv_heads = keys.shape[-2]
    query_tiles = triton.cdiv(max_query_len * (heads // kv_heads), tile.query_tile)
    _attend[(kv_heads, len(query_starts) - 1, query_tiles)](
        *(queries, keys, values, query_starts, *paging, out, sinks),
        *(prefix or (out, out, query_starts, query_starts)),
        *(kind.scale, kind.softcap or 0.0),
        *(queries.stride(0), paging.block_tables.stride(0)),
        prefix.stride if prefix else 0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=keys.shape[1],
        QUERY_TILE=tile.query_tile,
        KEY_TILE=tile.key_tile,
        WINDOW=kind.window or 0,
        FIRST_PART=_first_part(kind.window, 2 * tile.query_tile // (heads // kv_heads)),
        SOFTCAP=kind.softcap is not None,
        PREFIX=prefix is not None,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl(queries),
    )


def _first_part(window: int | None, wide: int) -> int:
    """Which of a tile's three ranges of keys is the first: seen by some queries, by all, by some.

    A window that is not `wide` leaves hardly a key that all queries of a tile see: one loop over
    all keys is shorter.
    """
    if window is None:
        return 1
    return 0 if window > wide else 2


_UNALIGNED = [
    *("query_starts", "block_tables", "slots", "context_lens"),
    *("prefix_starts", "parts", "table_stride", "part_stride"),
]
"""Views at any offset, which must not cause another compilation."""


@triton.jit(do_not_specialize=_UNALIGNED)
def _attend(
    queries, keys, values, query_starts, block_tables, slots, context_lens, scales, out, sinks,
    prefix_outputs, prefix_sums, prefix_starts, parts, scale, softcap, query_stride, table_stride,
    part_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr, QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr, FIRST_PART: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PREFIX: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head, row = tl.program_id(0), tl.program_id(1)
    # The last queries of a row have the most to do: they start first.
    first = (tl.num_programs(2) - 1 - tl.program_id(2)) * QUERY_TILE
    start = tl.load(query_starts + row).to(tl.int64)
    count = tl.load(query_starts + row + 1).to(tl.int32) - start.to(tl.int32)
    if first >= count * GROUP:
        return
    packed, dims = first + tl.arange(0, QUERY_TILE), tl.arange(0, DIM_BLOCK)
    present = packed < count * GROUP
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    tokens, heads = start + packed // GROUP, kv_head * GROUP + packed % GROUP
    query = tl.load(
        queries + (tokens * query_stride + heads * HEAD_DIM)[:, None] + dims[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    query, scale = in_half(query, scale, scales)
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    context, base = tl.load(context_lens + row), kv_head.to(tl.int64) * HEAD_DIM
    cached = context - count
    positions, earliest = cached + packed // GROUP, cached + first // GROUP
    latest = tl.minimum(cached + (first + QUERY_TILE - 1) // GROUP, context - 1)
    own_from = tl.load(prefix_starts + row) if PREFIX else 0
    peak, total, attended = before_any_key(QUERY_TILE, DIM_BLOCK)
    peak, total = with_sinks(sinks, heads, present, peak, total)
    peak, total, attended = _fold_ranges(
        query, keys + base, values + base, scales, kv_head, table, own_from, positions, earliest,
        latest, scale, softcap, peak, total, attended,
        KV_HEADS, HEAD_DIM, PAGE, KEY_TILE, FIRST_PART, WINDOW, SOFTCAP, DIM_BLOCK,
    )  # fmt: skip
    if PREFIX:
        peak, total, attended = fold_parts(
            prefix_outputs, prefix_sums, tl.load(parts + row), part_stride,
            tokens * HEADS + heads, dims, present, peak, total, attended, HEAD_DIM,
        )  # fmt: skip
    attended /= total[:, None]
    offsets = (tokens * HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + offsets, attended.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _fold_ranges(
    query, keys, values, scales, kv_head, table, own_from, positions, earliest, latest, scale,
    softcap, peak, total, attended, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr, KEY_TILE: tl.constexpr, FIRST_PART: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold the keys from `own_from` on that queries at `positions`, `earliest` to `latest`, see."""
    # All see the keys [0, common), some [common, end).
    all_see = earliest + 1 - own_from
    begin, full, common = 0, own_from, own_from + all_see // KEY_TILE * KEY_TILE
    end = latest + 1
    if WINDOW:  # Some see [begin, full), all see [full, common).
        begin = tl.maximum(earliest - WINDOW + 1, 0) // KEY_TILE * KEY_TILE
        full = tl.minimum(tl.cdiv(tl.maximum(latest - WINDOW + 1, 0), KEY_TILE) * KEY_TILE, common)
        common = begin if FIRST_PART == 2 else common
    for part in tl.static_range(FIRST_PART, 3):
        peak, total, attended = fold_tiles(
            query, keys, values, scales, kv_head, table,
            begin if part == 0 else (full if part == 1 else common),
            full if part == 0 else (common if part == 1 else end),
            positions, scale, softcap, peak, total, attended,
            part != 1, KV_HEADS, HEAD_DIM, PAGE, KEY_TILE, WINDOW, SOFTCAP, DIM_BLOCK,
        )  # fmt: skip
    return peak, total, attended


@triton.jit
def fold_tiles(
    query, keys, values, scales, kv_head, table, start, end, positions, scale, softcap, peak,
    total, attended, MASKED: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr, KEY_TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold the keys [start, end) into a running softmax of queries at `positions` [M], which see
    none behind them. Without MASKED, all see all."""
    dims = tl.arange(0, DIM_BLOCK)
    # Block ids are read a tile ahead, so that no load of keys waits for them.
    kv_indices = tile_kv_indices(table, start, end, PAGE, KEY_TILE)
    for tile in range(start, end, KEY_TILE):
        tokens = tile + tl.arange(0, KEY_TILE)
        known = (dims < HEAD_DIM)[None, :]
        if MASKED:
            # Unwritten KV indices may hold NaN, which a weight of 0 does not silence.
            known = known & (tokens < end)[:, None]
        offsets = kv_indices[:, None] * (KV_HEADS * HEAD_DIM) + dims[None, :]
        key = tl.load(keys + offsets, mask=known, other=0.0)
        value = tl.load(values + offsets, mask=known, other=0.0)
        tile_scales = load_scales(scales, kv_indices, kv_head, tokens < end, KV_HEADS, PAGE)
        kv_indices = tile_kv_indices(table, tile + KEY_TILE, end, PAGE, KEY_TILE)
        visible = tokens[None, :] <= positions[:, None]
        if WINDOW:
            visible = visible & (tokens[None, :] > positions[:, None] - WINDOW)
        peak, total, attended = fold_tile(
            query, key, value, tile_scales, visible, scale, softcap, 0.0, peak, total, attended,
            MASKED, SOFTCAP, False, WINDOW > 0,
        )  # fmt: skip
    return peak, total, attended
