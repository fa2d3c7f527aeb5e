"""Attention of one query a sequence over short own contexts: tokens are the rows of the products.

Hopper's asynchronous products (wgmma) have at least 64 rows: here these are tokens, not queries, so
keys and values go to the tensor cores straight from shared memory. With TMA (the tensor memory
accelerator) whole tiles are read: values that are masked must be finite. For many rows; contexts
are not split.

Either a program has one row and KV head, or a fixed number of programs takes one after another, and
reads the next one's first tiles while it finishes one: short contexts are no pauses then.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.kernels.attention.paging import tile_kv_indices
from workers.kernels.attention.prefix_parts import fold_parts
from workers.kernels.launch import pdl, processors
from workers.step.prefixes import PrefixParts

_LOG2_E = tl.constexpr(1.4426950408889634)


class Launch(NamedTuple):
    """Tokens a tile (a power of two, at least 64), warps, pipeline stages, programs a processor (0
    for one a row and KV head), TMA, the fewest columns of a product (16 for wgmma, or 8), and
    `paged_decode.Launch.overlap`."""

    tile: int
    warps: int
    stages: int
    programs: int = 0
    tma: bool = False
    columns: int = 16
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
    (rows, heads, head_dim), (page, kv_heads) = queries.shape, keys.shape[1:3]
    items = rows * kv_heads
    programs = min(launch.programs * processors(keys.device) or items, items)
    kernel, own = _attend, {"OVERLAP": int(prefix is not None and launch.overlap)}
    if launch.programs:
        most = triton.next_power_of_2(triton.cdiv(items, programs))
        kernel, own = _attend_stream, {"ITEMS": most, "rows": rows}
    dim_block = triton.next_power_of_2(head_dim)
    assert not launch.tma or (page % launch.tile == 0 and head_dim == dim_block)
    kernel[(programs,)](
        *(queries, _source(keys, launch), _source(values, launch)),
        *(block_tables, slots, context_lens, out),
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
        TMA=launch.tma,
        PREFIX=prefix is not None,
        GROUP_BLOCK=max(triton.next_power_of_2(heads // kv_heads), launch.columns),
        DIM_BLOCK=dim_block,
        **own,
        num_warps=launch.warps,
        num_stages=launch.stages,
        **pdl(queries),
    )


def _source(cache: torch.Tensor, launch: Launch) -> Any:
    """What a kernel loads tiles of `cache` from."""
    if not launch.tma:
        return cache
    return TensorDescriptor.from_tensor(
        cache.flatten(2).flatten(0, 1), [launch.tile, cache.shape[3]]
    )


_UNALIGNED = ["block_tables", "slots", "context_lens", "starts", "parts"]
_UNALIGNED += ["table_stride", "part_stride", "rows"]
"""Arguments that may be views at any offset, which must not cause another compilation."""


@triton.jit(do_not_specialize=_UNALIGNED)
def _attend(
    queries, keys, values, block_tables, slots, context_lens, out, prefix_outputs, prefix_sums,
    starts, parts, scale, query_stride, table_stride, part_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, TMA: tl.constexpr, PREFIX: tl.constexpr,
    OVERLAP: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row and KV head a program."""
    if PDL:
        if not OVERLAP:
            gdc_wait()
        gdc_launch_dependents()
    item, dims = tl.program_id(0), tl.arange(0, DIM_BLOCK)
    row, kv_head = (item // KV_HEADS).to(tl.int64), item % KV_HEADS
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    context = tl.load(context_lens + row)
    own_from = tl.load(starts + row) if PREFIX else 0
    query = _load_query(queries + row * query_stride, kv_head, HEADS, KV_HEADS, HEAD_DIM,
                        GROUP_BLOCK, DIM_BLOCK)  # fmt: skip
    peak = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_BLOCK,), tl.float32)
    attended = tl.zeros((DIM_BLOCK, GROUP_BLOCK), tl.float32)
    start = own_from // TILE * TILE
    place = _tile_place(table, start, context, PAGE, TILE, TMA)
    for tile in range(start, context, TILE):
        tokens = tile + tl.arange(0, TILE)
        visible = (tokens >= own_from) & (tokens < context)
        key, value = _load_tile(
            keys, values, place, kv_head, visible, KV_HEADS, HEAD_DIM, TMA, DIM_BLOCK
        )
        place = _tile_place(table, tile + TILE, context, PAGE, TILE, TMA)
        peak, total, attended = _fold_tile(query, key, value, visible, scale, peak, total, attended)
    if PDL and OVERLAP:
        gdc_wait()
    _finish(
        out, prefix_outputs, prefix_sums, parts, row, kv_head, part_stride, context, dims, peak,
        total, attended, HEADS, KV_HEADS, HEAD_DIM, PREFIX, GROUP_BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=_UNALIGNED)
def _attend_stream(
    queries, keys, values, block_tables, slots, context_lens, out, prefix_outputs, prefix_sums,
    starts, parts, scale, query_stride, table_stride, part_stride, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, TMA: tl.constexpr, ITEMS: tl.constexpr, PREFIX: tl.constexpr,
    GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """At most ITEMS rows and KV heads a program, one after another: a single loop over the tiles of
    all of them, so that loads run ahead from one into the next."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    dims, programs, items = tl.arange(0, DIM_BLOCK), tl.num_programs(0), rows * KV_HEADS
    item = tl.program_id(0)
    which = item + tl.arange(0, ITEMS) * programs
    lens = tl.load(context_lens + which // KV_HEADS, mask=which < items, other=0)
    counts = tl.cdiv(lens, TILE)
    if PREFIX:
        counts -= tl.load(starts + which // KV_HEADS, mask=which < items, other=0) // TILE
    # A row without tokens takes an iteration, too.
    tiles = tl.sum(tl.where(which < items, tl.maximum(counts, 1), 0), axis=0)

    row = item // KV_HEADS
    slot, context = tl.load(slots + row), tl.load(context_lens + row)
    own_from = tl.load(starts + row) if PREFIX else 0
    tile = own_from // TILE * TILE
    table = block_tables + slot.to(tl.int64) * table_stride
    place = _tile_place(table, tile, context, PAGE, TILE, TMA)
    peak = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_BLOCK,), tl.float32)
    attended = tl.zeros((DIM_BLOCK, GROUP_BLOCK), tl.float32)
    for _ in range(tiles):
        row, kv_head = item // KV_HEADS, item % KV_HEADS
        tokens = tile + tl.arange(0, TILE)
        visible = (tokens >= own_from) & (tokens < context)
        key, value = _load_tile(
            keys, values, place, kv_head, visible, KV_HEADS, HEAD_DIM, TMA, DIM_BLOCK
        )
        query = _load_query(queries + row.to(tl.int64) * query_stride, kv_head, HEADS, KV_HEADS,
                            HEAD_DIM, GROUP_BLOCK, DIM_BLOCK)  # fmt: skip
        peak, total, attended = _fold_tile(query, key, value, visible, scale, peak, total, attended)
        last = tile + TILE >= context
        if last:
            _finish(
                out, prefix_outputs, prefix_sums, parts, row.to(tl.int64), kv_head, part_stride,
                context, dims, peak, total, attended, HEADS, KV_HEADS, HEAD_DIM, PREFIX,
                GROUP_BLOCK,
            )  # fmt: skip
        peak, total = tl.where(last, float("-inf"), peak), tl.where(last, 0.0, total)
        attended = tl.where(last, 0.0, attended)
        item = tl.where(last, item + programs, item)
        row, known = item // KV_HEADS, last & (item < items)
        slot = tl.where(last, tl.load(slots + row, mask=known, other=0), slot)
        context = tl.where(last, tl.load(context_lens + row, mask=known, other=0), context)
        if PREFIX:
            own_from = tl.where(last, tl.load(starts + row, mask=known, other=0), own_from)
        tile = tl.where(last, own_from // TILE * TILE, tile + TILE)
        table = block_tables + slot.to(tl.int64) * table_stride
        place = _tile_place(table, tile, context, PAGE, TILE, TMA)


@triton.jit
def _load_query(
    queries, kv_head, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's queries of a KV head, [DIM_BLOCK, GROUP_BLOCK]."""
    members, dims = tl.arange(0, GROUP_BLOCK), tl.arange(0, DIM_BLOCK)
    heads = kv_head * (HEADS // KV_HEADS) + members
    inside = (members < HEADS // KV_HEADS)[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.trans(tl.load(queries + heads[:, None] * HEAD_DIM + dims[None, :], inside, 0.0))


@triton.jit
def _fold_tile(query, key, value, visible, scale, peak, total, attended):
    """`fold_tile`, transposed: key and value [N, D], query and attended [D, M]."""
    scores = tl.dot(key, query, input_precision="ieee") * (scale * _LOG2_E)
    scores = tl.where(visible[:, None], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=0))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights, kept = tl.exp2(scores - base[None, :]), tl.exp2(peak - base)
    total = total * kept + tl.sum(weights, axis=0)
    weights = weights.to(value.dtype)
    attended = tl.dot(tl.trans(value), weights, attended * kept[None, :], input_precision="ieee")
    return higher, total, attended


@triton.jit
def _finish(
    out, prefix_outputs, prefix_sums, parts, row, kv_head, part_stride, context, dims, peak, total,
    attended, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PREFIX: tl.constexpr, GROUP_BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold in a row's prefix, and store its output."""
    members = tl.arange(0, GROUP_BLOCK)
    present = members < HEADS // KV_HEADS
    heads, result = kv_head * (HEADS // KV_HEADS) + members, tl.trans(attended)
    if PREFIX:
        peak, total, result = fold_parts(
            prefix_outputs, prefix_sums, tl.load(parts + row), part_stride,
            row * HEADS + heads, dims, present, peak, total, result, HEAD_DIM,
        )  # fmt: skip
    result /= tl.where(total == 0.0, 1.0, total)[:, None]
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    here = out + (row * HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    # The output at an empty row's index belongs to another row.
    tl.store(here, result.to(out.dtype.element_ty), mask=inside & (context > 0))


@triton.jit
def _tile_place(table, tile, context, PAGE: tl.constexpr, TILE: tl.constexpr, TMA: tl.constexpr):
    """The KV indices of the tokens from `tile` on; with TMA, the first one alone."""
    if TMA:
        block = tl.load(table + tile // PAGE, mask=tile < context, other=0)
        place = block * PAGE + tile % PAGE
    else:
        place = tile_kv_indices(table, tile, context, PAGE, TILE)
    return place


@triton.jit
def _load_tile(
    keys, values, place, kv_head, visible, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    TMA: tl.constexpr, DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values [TILE, DIM_BLOCK] at a tile's place."""
    if TMA:
        key = keys.load([place, kv_head * HEAD_DIM])
        value = values.load([place, kv_head * HEAD_DIM])
    else:
        dims = tl.arange(0, DIM_BLOCK)
        offsets = (place * KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        known = visible[:, None] & (dims < HEAD_DIM)[None, :]
        key = tl.load(keys + offsets, mask=known, other=0.0)
        value = tl.load(values + offsets, mask=known, other=0.0)
    return key, value
