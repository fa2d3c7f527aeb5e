"""Attention of one query a row over a paged cache: bound by reading keys and values.

Query heads that share a KV head are the rows of one product, which reads keys and values once
(grouped queries, Ainslie et al. 2023, arXiv:2305.13245). If rows times KV heads are too few
programs to fill the GPU, several split each context, and log-sum-exps merge their results
(Flash-Decoding, Dao et al. 2023). Lengths are read on the device and do not decide the number of
programs: a CUDA graph of a launch is right for any. Attention over a prefix that rows share is
computed before (`shared_prefix`), and folded in at the end.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.contract.model_config import AttentionKind
from workers.device.tuning import (
    DECODE_MANY_SPLITS,
    DECODE_PROGRAMS_PER_PROCESSOR,
    DECODE_TILE_BYTES,
    FP8_DECODE_NUMBERS_A_WARP,
    FP8_DECODE_WARPS,
)
from workers.kernels.attention.fp8 import MAX_WEIGHT, in_half, inverse, load_scales, ratios, widened
from workers.kernels.attention.online_softmax import (
    LOG2_E,
    before_any_key,
    fold_parts,
    fold_tile,
    softcapped,
    tile_kv_indices,
    with_sinks,
)
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.launch import processors
from workers.step.paged_step import PrefixParts

MAX_SPLITS = 64

_UNALIGNED = [
    *("block_tables", "slots", "context_lens"),
    *("starts", "parts", "table_stride", "part_stride"),
]
"""Views at any offset, which must not cause another compilation."""


class Launch(NamedTuple):
    """Tokens a tile (a power of two, at least 16), warps, pipeline stages, splits a context."""

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
    kind: AttentionKind,
    out: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    min_splits: int = 1,
    prefix: PrefixParts | None = None,
) -> None:
    """softmax(q K^T * scale) V of each row over the first `context_lens[row]` tokens of its slot.
    With a window only the last `window` of them count.

    queries      [R, H, D], dense within a row
    keys, values [blocks, page, Hkv, D], contiguous; H is a multiple of Hkv
    block_tables int32[S, max_blocks], row slots[row] holds the row's block ids; dense in a row
    slots, context_lens  int32[R]
    kind         its scale, window and softcap
    scales       of a cache in FP8, int32[blocks, Hkv, page] (`workers/attention/fp8_numbers.py`)
    sinks        float32[H], the score of each head's attention sink
    min_splits   the fewest programs among which a context is split
    prefix       the first tokens of some rows, attended by the launch before, with which this one
                 overlaps: row r is token r of its T >= R; not with a window
    out          [R, H, D], contiguous; nothing is written for a row without tokens
    """
    longest = block_tables.shape[1] * keys.shape[1]
    seen = longest if kind.window is None else min(longest, kind.window)
    launch = _launch(queries, keys, seen, min_splits, own_parts=prefix is not None)
    paged = keys, values, block_tables, slots, context_lens
    _attend_with(launch, queries, *paged, kind, out, prefix, scales, sinks)


def _launch(
    queries: torch.Tensor,
    keys: torch.Tensor,
    most_tokens: int,
    min_splits: int = 1,
    *,
    own_parts: bool = False,
) -> Launch:
    """Choose by shapes, the most tokens that a row may see, and whether these are `own_parts`."""
    kv_heads, head_dim = keys.shape[2:]
    dim_block = 1 << (head_dim - 1).bit_length()
    # In float32 more would not fit in registers.
    fitting = min(max(DECODE_TILE_BYTES // (dim_block * queries.itemsize), 16), 128)
    tile = 16 if queries.dtype == torch.float32 else fitting
    tiles = -(-most_tokens // tile)
    # Without splits there are so many programs, which are enough if they fill the GPU.
    programs, present = len(queries) * kv_heads, processors(keys.device)
    wanted = 1 if programs >= present else DECODE_PROGRAMS_PER_PROCESSOR * present // programs
    splits = min(max(wanted, min_splits), tiles, MAX_SPLITS)
    if queries.dtype not in (keys.dtype, torch.float32):
        # One warp's registers hold what so many queries attend to.
        fits = queries.shape[1] // kv_heads * dim_block <= FP8_DECODE_NUMBERS_A_WARP
        each = programs * splits // present if fits else 0
        warps = next(warps for least, warps in FP8_DECODE_WARPS if each >= least)
        tile = min(max(warps * FP8_DECODE_NUMBERS_A_WARP // dim_block, 16), 128)
        return Launch(tile, warps, stages=2 if warps == 4 else 3, splits=splits)
    few_tiles = own_parts or splits > DECODE_MANY_SPLITS
    return Launch(tile, warps=4, stages=2 if few_tiles else 3, splits=splits)


def _attend_with(
    launch: Launch,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    slots: torch.Tensor,
    context_lens: torch.Tensor,
    kind: AttentionKind,
    out: torch.Tensor,
    prefix: PrefixParts | None = None,
    scales: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """`attend` with a given launch."""
    (rows, heads, head_dim), (page, kv_heads) = queries.shape, keys.shape[1:3]
    partial, sums = out, out
    if launch.splits > 1:
        shape = (launch.splits, rows, heads, head_dim)
        partial = torch.empty(shape, dtype=torch.float32, device=out.device)
        sums = torch.empty(shape[:-1], dtype=torch.float32, device=out.device)
    _attend[(kv_heads, launch.splits, rows)](
        *(queries, keys, values, scales, sinks, block_tables, slots, context_lens, partial, sums),
        *(prefix or (out, out, slots, slots)),
        *(kind.scale, kind.softcap or 0.0),
        *(queries.stride(0), block_tables.stride(0), prefix.stride if prefix else 0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=page,
        TILE=launch.tile,
        SPLIT=launch.splits > 1,
        PREFIX=prefix is not None,
        WINDOW=kind.window or 0,
        SOFTCAP=kind.softcap is not None,
        GROUP_BLOCK=max(triton.next_power_of_2(heads // kv_heads), 16 if scales is None else 8),
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=launch.warps,
        num_stages=launch.stages,
        **pdl(queries),
    )
    if launch.splits > 1:
        merge(partial, sums, out)


@triton.jit(do_not_specialize=_UNALIGNED)
def _attend(
    queries, keys, values, scales, sinks, block_tables, slots, context_lens, out, log_sum_exps,
    prefix_outputs, prefix_sums, starts, parts, scale, softcap, query_stride, table_stride,
    part_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, PREFIX: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        # All programs over the prefixes have waited for the cache's writer when this launch begins:
        # only what they write is waited for, at the end.
        if not PREFIX:
            gdc_wait()
        gdc_launch_dependents()
    # KV heads are neighbours in the grid, because they are in memory.
    kv_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows, splits = tl.num_programs(2), tl.num_programs(1)
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
    context = tl.load(context_lens + row)
    seen_from = tl.load(starts + row) if PREFIX else tl.maximum(context - (WINDOW or context), 0)
    first = seen_from // TILE
    tiles = tl.cdiv(context, TILE) - first
    start = (first + tiles * split // splits) * TILE
    end = tl.minimum((first + tiles * (split + 1) // splits) * TILE, context)
    here = (split.to(tl.int64) * rows + row) * HEADS
    members, dims = tl.arange(0, GROUP_BLOCK), tl.arange(0, DIM_BLOCK)
    heads = kv_head * (HEADS // KV_HEADS) + members
    present = members < HEADS // KV_HEADS
    if SPLIT and start >= end:
        if PDL and PREFIX:
            gdc_wait()
        tl.store(log_sum_exps + here + heads, float("-inf"), mask=present)
        return
    inside = present[:, None] & (dims < HEAD_DIM)[None, :]
    within = heads[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(queries + row * query_stride + within, mask=inside, other=0.0)
    query, scale = in_half(query, scale, scales)
    peak, total, attended = before_any_key(GROUP_BLOCK, DIM_BLOCK)
    # The last split always has tokens.
    peak, total = with_sinks(sinks, heads, present & (split == splits - 1), peak, total)
    peak, total, attended = _fold_tokens(
        query, keys, values, scales, table, start, end, seen_from, kv_head, scale, softcap, peak,
        total, attended,
        KV_HEADS, HEAD_DIM, PAGE, TILE, PREFIX or WINDOW > 0, SOFTCAP, DIM_BLOCK,
    )  # fmt: skip
    if PDL and PREFIX:
        gdc_wait()
    if PREFIX:
        count = tl.where(split == splits - 1, tl.load(parts + row), 0)
        peak, total, attended = fold_parts(
            prefix_outputs, prefix_sums, count, part_stride, row * HEADS + heads,
            dims, present, peak, total, attended, HEAD_DIM,
        )  # fmt: skip
    attended /= tl.where(total == 0.0, 1.0, total)[:, None]
    # The output at an empty row's index belongs to another row.
    written = inside & (context > 0)
    tl.store(out + here * HEAD_DIM + within, attended.to(out.dtype.element_ty), mask=written)
    if SPLIT:
        sums = (peak + tl.log2(total)) / LOG2_E
        tl.store(log_sum_exps + here + heads, sums, mask=present)


@triton.jit
def _fold_tokens(
    query, keys, values, scales, table, start, end, seen_from, kv_head, scale, softcap, peak,
    total, attended, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, FROM: tl.constexpr, SOFTCAP: tl.constexpr, DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold the tokens [start, end) into a running softmax, without those before `seen_from` if
    FROM. `start` is a multiple of TILE."""
    dims, largest = tl.arange(0, DIM_BLOCK), tl.full((), 0.0, tl.float32)
    if scales is not None:
        query, scale, attended = tl.trans(query), tl.trans(scale), tl.trans(attended)
    # Block ids are read a tile ahead, so that no load of keys waits for them.
    kv_indices = tile_kv_indices(table, start, end, PAGE, TILE)
    for tile in range(start, end, TILE):
        offsets = (kv_indices * KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        tokens = tile + tl.arange(0, TILE)
        visible = (tokens < end) & (tokens >= seen_from) if FROM else tokens < end
        # Unwritten KV indices may hold NaN, which a weight of 0 does not silence.
        known = visible[:, None] & (dims < HEAD_DIM)[None, :]
        key = tl.load(keys + offsets, mask=known, other=0.0)
        value = tl.load(values + offsets, mask=known, other=0.0)
        tile_scales = load_scales(scales, kv_indices, kv_head, visible, KV_HEADS, PAGE)
        kv_indices = tile_kv_indices(table, tile + TILE, end, PAGE, TILE)
        if scales is None:
            peak, total, attended = fold_tile(
                query, key, value, None, visible[None, :], scale, softcap, 0.0, peak, total,
                attended, True, SOFTCAP, False, False,
            )  # fmt: skip
        else:
            peak, total, attended, largest = _fold_fp8_tile(
                query, key, value, tile_scales, visible, scale, softcap, peak, total, attended,
                largest, SOFTCAP,
            )  # fmt: skip
    if scales is not None:
        attended = tl.trans(attended) * (largest / MAX_WEIGHT)
    return peak, total, attended


@triton.jit
def _fold_fp8_tile(
    query, key, value, scales, visible, scale, softcap, peak, total, attended, largest,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """`fold_tile` of few queries [D, M] over N tokens in FP8, `visible` [N]. The state is
    transposed: attended [D, M] are times `largest` / MAX_WEIGHT, of the greatest scale of values
    so far.

    Keys are multiplied by queries, and values by weights, not the other way round: a product has
    16 rows at least but 8 columns, and a KV head seldom has more queries. So a token takes half of
    the instructions.
    """
    # The compiler reads keys, whose rows are summed over, as a product needs them. With values it
    # does not, and they are widened before.
    scores = tl.dot(key.to(query.dtype), query, input_precision="ieee") * scales[0][:, None]
    scores *= scale if SOFTCAP else scale * LOG2_E
    if SOFTCAP:
        scores = softcapped(scores, softcap) * LOG2_E
    scores = tl.where(visible[:, None], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=0))
    weights, kept = tl.exp2(scores - higher[None, :]), tl.exp2(peak - higher)
    total = total * kept + tl.sum(weights, axis=0)
    larger = tl.maximum(largest, tl.max(scales[1], axis=0))
    weights *= ratios(scales[1], larger)[:, None]
    attended *= (kept * (largest * inverse(larger)))[None, :]
    wide, weights = tl.trans(widened(value, query.dtype)), weights.to(query.dtype)
    return higher, total, tl.dot(wide, weights, attended, input_precision="ieee"), larger


def merge(outputs: torch.Tensor, log_sum_exps: torch.Tensor, out: torch.Tensor) -> None:
    """Softmax attention over the union of S <= MAX_SPLITS disjoint splits of a context (Dao 2023,
    arXiv:2307.08691, section 3).

    outputs       [S, R, H, D], contiguous. Not read where the log-sum-exp is -inf.
    log_sum_exps  float32[S, R, H] of natural logarithms, contiguous
    out           [R, H, D]. A row without tokens in any split is not written.
    """
    splits, rows, heads, head_dim = outputs.shape
    assert splits <= MAX_SPLITS
    dim_block = triton.next_power_of_2(head_dim)
    _merge[(rows, heads)](
        outputs,
        log_sum_exps,
        out,
        splits,
        rows * heads,
        HEADS=heads,
        HEAD_DIM=head_dim,
        SPLITS=MAX_SPLITS,
        DIM_BLOCK=dim_block,
        num_warps=max(dim_block // 32, 1),
        **pdl(out),
    )


@triton.jit(do_not_specialize=["splits", "split_stride"])
def _merge(
    outputs, log_sum_exps, out, splits, split_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    here = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    which = tl.arange(0, SPLITS)
    indices = which.to(tl.int64) * split_stride + here
    sums = tl.load(log_sum_exps + indices, mask=which < splits, other=float("-inf"))
    present = sums > float("-inf")
    peak = tl.max(sums, axis=0)
    weights = tl.where(present, tl.exp(sums - peak), 0.0)
    total = tl.sum(weights, axis=0)
    dims = tl.arange(0, DIM_BLOCK)
    inside = dims < tl.where(total > 0.0, HEAD_DIM, 0)
    partial = tl.load(
        outputs + indices[:, None] * HEAD_DIM + dims[None, :],
        mask=present[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    merged = tl.sum(partial * weights[:, None], axis=0) / total
    tl.store(out + here * HEAD_DIM + dims, merged.to(out.dtype.element_ty), mask=inside)
