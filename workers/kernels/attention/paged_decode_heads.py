"""Attention of one query a sequence over short own contexts: several KV heads a program.

Each warp has a KV head of its own, so no maximum or sum crosses warps, and a program reads what
lies together in memory: a token's keys of neighbouring KV heads. For many rows; contexts are not
split.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.attention.paging import tile_kv_indices
from workers.kernels.attention.prefix_parts import fold_parts
from workers.kernels.launch import pdl
from workers.step.prefixes import PrefixParts

_LOG2_E = tl.constexpr(1.4426950408889634)


class Launch(NamedTuple):
    """KV heads a program, tokens a tile (powers of two), warps, pipeline stages, whether keys and
    values leave the L2 cache first, and `paged_decode.Launch.overlap`."""

    heads: int
    tile: int
    warps: int
    stages: int
    evict_first: bool = False
    overlap: bool = False


def attend(
    launch: Launch,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    prefix: PrefixParts | None = None,
) -> None:
    """`paged_decode.attend` without splits, windows and softcap."""
    rows, heads, head_dim = queries.shape
    page, kv_heads = keys.shape[1:3]
    assert kv_heads % launch.heads == 0
    _attend[(kv_heads // launch.heads, rows)](
        *(queries, keys, values, block_tables, slots, context_lens, out),
        *(prefix or (out, out, slots, slots)),
        scale,
        queries.stride(0),
        block_tables.stride(0),
        prefix.stride if prefix else 0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=page,
        TILE=launch.tile,
        BATCH=launch.heads,
        PREFIX=prefix is not None,
        OVERLAP=prefix is not None and launch.overlap,
        EVICT="evict_first" if launch.evict_first else "",
        GROUP_BLOCK=max(triton.next_power_of_2(heads // kv_heads), 16),
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=launch.warps,
        num_stages=launch.stages,
        **pdl(queries),
    )


_UNALIGNED = ["block_tables", "slots", "context_lens", "starts", "parts"]
_UNALIGNED += ["table_stride", "part_stride"]
"""Arguments that may be views at any offset, which must not cause another compilation."""


@triton.jit(do_not_specialize=_UNALIGNED)
def _attend(
    queries, keys, values, block_tables, slots, context_lens, out, prefix_outputs, prefix_sums,
    starts, parts, scale, query_stride, table_stride, part_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, BATCH: tl.constexpr, PREFIX: tl.constexpr, OVERLAP: tl.constexpr,
    EVICT: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        if not OVERLAP:
            gdc_wait()
        gdc_launch_dependents()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, first_head = tl.program_id(1).to(tl.int64), tl.program_id(0) * BATCH
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    context = tl.load(context_lens + row)
    own_from = tl.load(starts + row) if PREFIX else 0
    start, dims = own_from // TILE * TILE, tl.arange(0, DIM_BLOCK)
    # Row i of the product is query head i % GROUP_BLOCK of KV head i // GROUP_BLOCK.
    packed = tl.arange(0, BATCH * GROUP_BLOCK)
    present = packed % GROUP_BLOCK < GROUP
    heads = (first_head + packed // GROUP_BLOCK) * GROUP + packed % GROUP_BLOCK
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    within = heads[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(queries + row * query_stride + within, mask=inside, other=0.0)
    query = query.reshape(BATCH, GROUP_BLOCK, DIM_BLOCK)

    kv_heads = first_head + tl.arange(0, BATCH)
    columns = kv_heads[:, None, None] * HEAD_DIM + dims[None, None, :]
    peak = tl.full((BATCH, GROUP_BLOCK), float("-inf"), tl.float32)
    total = tl.zeros((BATCH, GROUP_BLOCK), tl.float32)
    attended = tl.zeros((BATCH, GROUP_BLOCK, DIM_BLOCK), tl.float32)
    kv_indices = tile_kv_indices(table, start, context, PAGE, TILE)
    for tile in range(start, context, TILE):
        tokens = tile + tl.arange(0, TILE)
        visible = ((tokens >= own_from) & (tokens < context))[None, :, None]
        known = visible & (dims < HEAD_DIM)[None, None, :]
        offsets = (kv_indices * (KV_HEADS * HEAD_DIM))[None, :, None] + columns
        key = tl.load(keys + offsets, mask=known, other=0.0, eviction_policy=EVICT)
        value = tl.load(values + offsets, mask=known, other=0.0, eviction_policy=EVICT)
        kv_indices = tile_kv_indices(table, tile + TILE, context, PAGE, TILE)
        peak, total, attended = _fold_tile(query, key, value, visible, scale, peak, total, attended)

    peak, total = peak.reshape(BATCH * GROUP_BLOCK), total.reshape(BATCH * GROUP_BLOCK)
    attended = attended.reshape(BATCH * GROUP_BLOCK, DIM_BLOCK)
    if PDL and OVERLAP:
        gdc_wait()
    if PREFIX:
        peak, total, attended = fold_parts(
            prefix_outputs, prefix_sums, tl.load(parts + row),
            part_stride, row * HEADS + heads, dims, present,
            peak, total, attended, HEAD_DIM,
        )  # fmt: skip
    attended /= tl.where(total == 0.0, 1.0, total)[:, None]
    out += row * (HEADS * HEAD_DIM)
    tl.store(out + within, attended.to(out.dtype.element_ty), mask=inside & (context > 0))


@triton.jit
def _fold_tile(query, key, value, visible, scale, peak, total, attended):
    """`fold_tile` of several KV heads [B]: query [B, M, D], key and value [B, N, D]."""
    scores = tl.dot(query, tl.permute(key, (0, 2, 1)), input_precision="ieee")
    scores = tl.where(tl.permute(visible, (0, 2, 1)), scores * (scale * _LOG2_E), float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=2))
    weights, kept = tl.exp2(scores - higher[:, :, None]), tl.exp2(peak - higher)
    total = total * kept + tl.sum(weights, axis=2)
    attended *= kept[:, :, None]
    attended += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return higher, total, attended
