"""Attention over prefixes that several rows share: keys and values are read once for all of them.

One product packs a group's query heads of a KV head. Programs read their work from a table on the
device: a CUDA graph of a launch is right for any groups. Sources: ChunkAttention, Ye et al. 2024,
arXiv:2402.15220; Hydragen, Juravsky et al. 2024, arXiv:2402.05099.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.contract.model_config import AttentionKind
from workers.device.tuning import SHARED_PREFIX_TILE
from workers.kernels.attention.fp8 import in_half
from workers.kernels.attention.online_softmax import LOG2_E, before_any_key
from workers.kernels.attention.paged_prefill import fold_tiles, tile_for
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.step.paged_step import PrefixParts


def tokens_a_tile(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """The most tokens that an entry of `attend`'s table may have."""
    return max(tile_for(head_dim, dtype, SHARED_PREFIX_TILE).query_tile // (heads // kv_heads), 1)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    tiles: torch.Tensor,
    parts: PrefixParts,
    kind: AttentionKind,
    scales: torch.Tensor | None = None,
) -> None:
    """softmax(q K^T * scale) V over parts of prefixes, and its log-sum-exp, into `parts`.

    queries      [T, H, D], dense within a token
    keys, values [blocks, page, Hkv, D], contiguous; H is a multiple of Hkv
    block_tables int32[S, max_blocks], row slots[row] holds the row's block ids; dense in a row
    slots        int32[R]
    tiles        int32[N, 6]: (first token, tokens, row, start, end, part); at most `tokens_a_tile`
                 tokens, or none, that see the positions [start, end) of the row, whole blocks
    kind         its scale and softcap; no window
    scales       of a cache in FP8, int32[blocks, Hkv, page] (`workers/attention/fp8_numbers.py`)
    """
    (heads, head_dim), (page, kv_heads) = queries.shape[1:], keys.shape[1:3]
    tile = tile_for(head_dim, queries.dtype, SHARED_PREFIX_TILE)
    # A tile of fewer queries than heads share a KV head would not hold one token.
    query_tile = max(tile.query_tile, triton.next_power_of_2(heads // kv_heads))
    _attend[(kv_heads, len(tiles))](
        *(queries, keys, values, scales, block_tables, slots, tiles),
        *(parts.outputs, parts.log_sum_exps),
        *(kind.scale, kind.softcap or 0.0),
        *(queries.stride(0), block_tables.stride(0), parts.stride),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=page,
        QUERY_TILE=query_tile,
        KEY_TILE=tile.key_tile,
        SOFTCAP=kind.softcap is not None,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl(queries),
    )


@triton.jit(do_not_specialize=["block_tables", "slots", "tiles", "table_stride", "part_stride"])
def _attend(
    queries, keys, values, scales, block_tables, slots, tiles, outputs, log_sum_exps,
    scale, softcap, query_stride, table_stride, part_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr, SOFTCAP: tl.constexpr,
    DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    # KV heads are neighbours in the grid, because they are in memory.
    kv_head, tile = tl.program_id(0), tiles + tl.program_id(1) * 6
    count = tl.load(tile + 1) * GROUP
    if count == 0:
        return
    first, slot = tl.load(tile).to(tl.int64), tl.load(slots + tl.load(tile + 2)).to(tl.int64)
    start, end, part = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5).to(tl.int64)
    packed, dims = tl.arange(0, QUERY_TILE), tl.arange(0, DIM_BLOCK)
    present = packed < count
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    tokens, heads = first + packed // GROUP, kv_head * GROUP + packed % GROUP
    query = tl.load(
        queries + (tokens * query_stride + heads * HEAD_DIM)[:, None] + dims[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    query, scale = in_half(query, scale, scales)
    table, base = block_tables + slot * table_stride, kv_head.to(tl.int64) * HEAD_DIM
    peak, total, attended = before_any_key(QUERY_TILE, DIM_BLOCK)
    # Whole tiles, then what is left, if blocks are smaller than a tile.
    whole = start + (end - start) // KEY_TILE * KEY_TILE
    for masked in tl.static_range(2):
        peak, total, attended = fold_tiles(
            query, keys + base, values + base, scales, kv_head, table,
            whole if masked else start, end if masked else whole,
            packed * 0 + end - 1, scale, softcap, peak, total, attended,
            masked == 1, KV_HEADS, HEAD_DIM, PAGE, KEY_TILE, 0, SOFTCAP, DIM_BLOCK,
        )  # fmt: skip
    here = part * part_stride + tokens * HEADS + heads
    out = (attended / total[:, None]).to(outputs.dtype.element_ty)
    tl.store(outputs + here[:, None] * HEAD_DIM + dims[None, :], out, mask=inside)
    tl.store(log_sum_exps + here, (peak + tl.log2(total)) / LOG2_E, mask=present)
