"""Attention of one query a sequence over a paged cache: bound by reading keys and values.

The query heads that share a KV head are the rows of one product, so keys and values are read once
(grouped queries, Ainslie et al. 2023, arXiv:2305.13245). Where sequences times KV heads are too few
programs to fill the GPU, each context is split among several (Flash-Decoding, Dao et al. 2023), of
which the last to finish merges the parts. How many depends on shapes only, and what each of them
reads on lengths that it finds on the device: a CUDA graph of a launch is right for any lengths.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl
from workers.kernels.online_softmax import fold_tile
from workers.kernels.paging import cache_places

_PROGRAMS_PER_PROCESSOR = 3
_TILE_BYTES = 16384
_MAX_SPLITS = 64
"""What one program merges is bounded."""
_MERGED_AT_ONCE = 8192
"""Numbers of its parts that a merge waits for together: 64 registers a thread."""
_LOG2_E = tl.constexpr(1.4426950408889634)


class Launch(NamedTuple):
    """Tokens a tile (a power of two, at least 16), warps, pipeline stages, programs a context."""

    tile: int
    warps: int
    stages: int
    splits: int


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q K^T * scale) V of each row over the first `context_lens[row]` tokens of its slot.

    queries      [R, H, D], dense within a row
    keys, values [blocks, page, Hkv, D], contiguous; H is a multiple of Hkv
    block_tables int32[S, max_blocks], row slots[row] holds the row's block ids; contiguous
    slots, context_lens  int32[R]
    Returns [R, H, D], contiguous: `out` where given. A row without tokens gives 0.
    """
    rows, heads, head_dim = queries.shape
    if out is None:
        out = torch.empty((rows, heads, head_dim), dtype=queries.dtype, device=queries.device)
    how, finished = _launch(queries, keys, block_tables.shape[1]), _finished(queries.device)
    _attend_with(
        how, finished, queries, keys, values, block_tables, slots, context_lens, scale, out
    )
    return out


def _launch(queries: torch.Tensor, keys: torch.Tensor, max_blocks: int) -> Launch:
    """The choice by shapes, for every shape."""
    _, page, kv_heads, head_dim = keys.shape
    row_bytes = (1 << (head_dim - 1).bit_length()) * keys.itemsize
    # More would not fit in registers in float32, whose products are no tensor core's.
    tile = 16 if keys.dtype == torch.float32 else min(max(_TILE_BYTES // row_bytes, 16), 128)
    wanted = -(-_programs(keys.device) // (len(queries) * kv_heads))
    splits = min(wanted, -(-max_blocks * page // tile), _MAX_SPLITS)
    return Launch(tile, warps=4, stages=3, splits=splits)


@lru_cache
def _finished(device: torch.device) -> torch.Tensor:
    """How many programs of each (row, KV head) have finished: int32, 0 between launches.

    Contexts are split only where these pairs are fewer than `_programs`. One tensor serves all
    launches, which follow each other on one stream. It is never first asked for while a CUDA graph
    is captured, whose memory other graphs overwrite: what is captured has run once before.
    """
    return torch.zeros(_programs(device), dtype=torch.int32, device=device)


def _programs(device: torch.device) -> int:
    """How many shall run at the same time."""
    return _PROGRAMS_PER_PROCESSOR * _processors(device)


@lru_cache
def _processors(device: torch.device) -> int:
    """Streaming multiprocessors; the interpreter runs programs one after another."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _attend_with(
    how: Launch,
    finished: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """`attend` launched as told; `finished` is 0 for each (row, KV head), and is left so."""
    rows, heads, head_dim = queries.shape
    page, kv_heads = keys.shape[1:3]
    group = triton.next_power_of_2(heads // kv_heads)
    dims = triton.next_power_of_2(head_dim)
    partial, sums = out, out
    if how.splits > 1:
        shape = (rows, kv_heads, how.splits, heads // kv_heads, head_dim)
        partial = torch.empty(shape, dtype=torch.float32, device=out.device)
        sums = torch.empty(shape[:-1], dtype=torch.float32, device=out.device)
    _attend[(kv_heads, how.splits, rows)](
        queries,
        keys,
        values,
        block_tables,
        slots,
        context_lens,
        partial,
        sums,
        finished,
        out,
        scale,
        queries.stride(0),
        block_tables.stride(0),
        GROUP=heads // kv_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=page,
        TILE=how.tile,
        SPLIT=how.splits > 1,
        GROUP_BLOCK=group,
        DIM_BLOCK=dims,
        PARTS_BLOCK=min(max(_MERGED_AT_ONCE // (group * dims), 1), _MAX_SPLITS),
        num_warps=how.warps,
        num_stages=how.stages,
        **pdl(queries),
    )


@triton.jit(do_not_specialize=["block_tables", "slots", "context_lens", "table_stride"])
def _attend(
    queries, keys, values, block_tables, slots, context_lens, partial, log_sum_exps, finished, out,
    scale, query_stride, table_stride,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PARTS_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    # KV heads are neighbours in the grid, because they are in memory.
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    context = tl.load(context_lens + row)
    tiles, splits = tl.cdiv(context, TILE), tl.num_programs(1)
    # No part is empty, but the only one of a row without tokens.
    parts = tl.maximum(tl.minimum(tiles, splits), 1)
    if SPLIT and split >= parts:
        return
    start = tiles * split // parts * TILE
    end = tl.minimum(tiles * (split + 1) // parts * TILE, context)

    # A product takes 16 rows or more.
    members, dims = tl.arange(0, max(GROUP_BLOCK, 16)), tl.arange(0, DIM_BLOCK)
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    within = members[:, None] * HEAD_DIM + dims[None, :]
    queries += row * query_stride + kv_head * GROUP * HEAD_DIM
    query = tl.load(queries + within, mask=inside, other=0.0)

    peak = tl.full(members.shape, float("-inf"), tl.float32)
    total = tl.zeros(members.shape, tl.float32)
    attended = tl.zeros(within.shape, tl.float32)
    # Block ids are read a tile ahead, so that no load of keys waits for them.
    places = cache_places(table, start, end, PAGE, TILE)
    for tile in range(start, end, TILE):
        offsets = (places * KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        visible = tile + tl.arange(0, TILE) < end
        # Unwritten slots may hold NaN, which a weight of 0 does not silence.
        known = visible[:, None] & (dims < HEAD_DIM)[None, :]
        key = tl.load(keys + offsets, mask=known, other=0.0)
        value = tl.load(values + offsets, mask=known, other=0.0)
        places = cache_places(table, tile + TILE, end, PAGE, TILE)
        peak, total, attended = fold_tile(
            query, key, value, visible[None, :], scale * _LOG2_E, peak, total, attended, True
        )
    attended /= tl.where(total == 0.0, 1.0, total)[:, None]

    pair = row * KV_HEADS + kv_head
    out += pair * GROUP * HEAD_DIM
    if SPLIT and parts > 1:
        log_sum_exps += pair * splits * GROUP
        partial += pair * splits * GROUP * HEAD_DIM
        tl.store(log_sum_exps + split * GROUP + members, peak + tl.log2(total), members < GROUP)
        tl.store(partial + split * GROUP * HEAD_DIM + within, attended, mask=inside)
        # One thread counts: what the others have stored must be there before, for all to see.
        tl.debug_barrier()
        if tl.atomic_add(finished + pair, 1, sem="acq_rel", scope="gpu") == parts - 1:
            _merge(
                partial, log_sum_exps, parts, out,
                GROUP, HEAD_DIM, GROUP_BLOCK, DIM_BLOCK, PARTS_BLOCK,
            )  # fmt: skip
            tl.store(finished + pair, 0)
    else:
        tl.store(out + within, attended.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _merge(
    partial, log_sum_exps, parts, out,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, PARTS_BLOCK: tl.constexpr,
):  # fmt: skip
    """The parts' partial [parts, GROUP, HEAD_DIM] and log_sum_exps [parts, GROUP], for base 2, into
    out [GROUP, HEAD_DIM] (Dao 2023, arXiv:2307.08691, section 3): PARTS_BLOCK at once, since each
    round waits for memory.
    """
    members, which = tl.arange(0, GROUP_BLOCK), tl.arange(0, PARTS_BLOCK)
    dims = tl.arange(0, DIM_BLOCK)
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    within = members[:, None] * HEAD_DIM + dims[None, :]
    peak = tl.full(members.shape, float("-inf"), tl.float32)
    total = tl.zeros(members.shape, tl.float32)
    merged = tl.zeros(within.shape, tl.float32)
    # In tiles members come first, so that warps share them out and each sums up its own parts.
    for first in range(0, parts, PARTS_BLOCK):
        part = first + which
        known = (members < GROUP)[:, None] & (part < parts)[None, :]
        # Other programs wrote them: L1 may hold what was there before.
        sums = tl.load(
            log_sum_exps + members[:, None] + part[None, :] * GROUP,
            mask=known,
            other=float("-inf"),
            cache_modifier=".cg",
        )
        values = tl.load(
            partial + within[:, None, :] + part[None, :, None] * GROUP * HEAD_DIM,
            mask=inside[:, None, :] & known[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(peak, tl.max(sums, axis=1))
        weights = tl.exp2(sums - higher[:, None])
        kept = tl.exp2(peak - higher)
        total = total * kept + tl.sum(weights, axis=1)
        merged = merged * kept[:, None] + tl.sum(values * weights[:, :, None], axis=1)
        peak = higher
    tl.store(out + within, (merged / total[:, None]).to(out.dtype.element_ty), mask=inside)
