"""Attention within whole texts that are packed one after another (FlashAttention-2, Dao 2023,
arXiv:2307.08691).

A tile of queries has as many whole texts as fit, so that short ones fill it, or a part of a longer
one. Grids depend on the number of tiles alone, and so not on how many texts there may be.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.contract.model_config import AttentionKind
from workers.device.tuning import (
    TEXT_TILE,
    TEXT_TILE_TOKENS,
    TEXT_TILE_WIDE_HEADS,
    PrefillTile,
)
from workers.kernels.attention.online_softmax import before_any_key, fold_tile
from workers.kernels.attention.paged_prefill import tile_for
from workers.kernels.dependent_launch import pdl, wait_for_previous


def tile_for_texts(head_dim: int, dtype: torch.dtype) -> PrefillTile:
    """Chosen as by `tile_for`. Its queries divide `TEXT_TILE_TOKENS`."""
    return tile_for(head_dim, dtype, TEXT_TILE if head_dim <= 64 else TEXT_TILE_WIDE_HEADS)


def attend(
    tile: PrefillTile,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: torch.Tensor,
    positions: torch.Tensor,
    kind: AttentionKind,
    out: torch.Tensor,
    position_bias: torch.Tensor | None = None,
) -> None:
    """Attention from every token to its text, by the scale, window and softcap of `kind`.

    queries      [T, H, D], dense within a token
    keys, values [T, Hkv, D], dense within a token, with equal strides; H is a multiple of Hkv
    tiles        int32[N, 3], contiguous (see `text_tiles`)
    positions    int64[T], of tokens in their texts
    out          [T, H, D], contiguous; tokens outside all texts are left alone
    position_bias  position_bias[h, L - 1 + k - q], [H, 2 * L - 1] of texts of at most L tokens,
                 contiguous, is added to the score of query q and key k
    """
    heads, head_dim = queries.shape[1:]
    parts = TEXT_TILE_TOKENS // tile.query_tile
    bias = queries if position_bias is None else position_bias
    _attend[(heads, len(tiles) * parts)](
        *(queries, keys, values, tiles, positions, out, bias),
        *(kind.scale, kind.softcap or 0.0),
        *(queries.stride(0), keys.stride(0), bias.shape[1]),
        GROUP=heads // keys.shape[1],
        HEAD_DIM=head_dim,
        PARTS=parts,
        QUERY_TILE=tile.query_tile,
        KEY_TILE=tile.key_tile,
        WINDOW=kind.window or 0,
        SOFTCAP=kind.softcap is not None,
        BIASED=position_bias is not None,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **pdl(queries),
    )


@triton.jit(do_not_specialize=["tiles", "positions", "distances"])
def _attend(
    queries, keys, values, tiles, positions, out, bias, scale, softcap, query_stride, key_stride,
    distances, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr,
    QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    BIASED: tl.constexpr, DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    head, tile = tl.program_id(0), tl.program_id(1)
    own = tiles + tile // PARTS * 3
    first = tl.load(own) + tile % PARTS * QUERY_TILE
    begin, end = tl.load(own + 1), tl.load(own + 2)
    if first >= end:
        return
    tokens, dims = first + tl.arange(0, QUERY_TILE), tl.arange(0, DIM_BLOCK)
    present, known = tokens < end, (dims < HEAD_DIM)[None, :]
    inside, rows = present[:, None] & known, tokens.to(tl.int64)[:, None]
    query = tl.load(
        queries + rows * query_stride + head * HEAD_DIM + dims[None, :], mask=inside, other=0.0
    )
    place = tl.load(positions + tokens, mask=present, other=0).to(tl.int32)
    texts = tl.where(present, tokens - place, -1)
    alone = tl.load(positions + end - 1).to(tl.int32) == end - 1 - begin
    start = begin
    if WINDOW:
        start = tl.maximum(begin, first - WINDOW + 1)
        end = tl.minimum(end, first + QUERY_TILE - 1 + WINDOW)
    # All queries of a text see the keys [start, common).
    whole = (end - start) // KEY_TILE * KEY_TILE
    common = start if WINDOW else tl.where(alone, start + whole, start)
    heads = head // GROUP * HEAD_DIM + dims[None, :]
    own_bias = bias + head * distances + distances // 2 - tokens[:, None]
    peak, total, attended = before_any_key(QUERY_TILE, DIM_BLOCK)
    for masked in tl.static_range(2):
        peak, total, attended = _fold_keys(
            query, keys + heads, values + heads, key_stride, positions,
            common if masked else start, end if masked else common, tokens, texts, own_bias,
            scale, softcap, peak, total, attended,
            masked, HEAD_DIM, KEY_TILE, WINDOW, SOFTCAP, BIASED, DIM_BLOCK,
        )  # fmt: skip
    attended /= total[:, None]
    offsets = (rows * tl.num_programs(0) + head) * HEAD_DIM + dims[None, :]
    tl.store(out + offsets, attended.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _fold_keys(
    query, keys, values, key_stride, positions, start, end, tokens, texts, own_bias, scale,
    softcap, peak, total, attended, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BIASED: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold the keys [start, end) into a running softmax of queries that are `tokens` [M] of `texts`
    [M], by their first tokens. Without MASKED, all queries see all."""
    dims = tl.arange(0, DIM_BLOCK)
    for tile in range(start, end, KEY_TILE):
        own = tile + tl.arange(0, KEY_TILE)
        known, visible = (dims < HEAD_DIM)[None, :], (texts >= 0)[:, None]
        if MASKED:
            there = own < end
            known = known & there[:, None]
            text = own - tl.load(positions + own, mask=there, other=0).to(tl.int32)
            visible = visible & (text[None, :] == texts[:, None]) & there[None, :]
            if WINDOW:
                visible = visible & (tl.abs(own[None, :] - tokens[:, None]) < WINDOW)
        offsets = own.to(tl.int64)[:, None] * key_stride
        key = tl.load(keys + offsets, mask=known, other=0.0)
        value = tl.load(values + offsets, mask=known, other=0.0)
        bias = 0.0
        if BIASED:
            bias = tl.load(own_bias + own[None, :], mask=visible, other=0.0).to(tl.float32)
        if MASKED:
            # A weight of 0 would not silence another text's values that are not finite: these are
            # NaN in the scores of their own text instead.
            spoilt = tl.sum(value.to(tl.float32) * 0.0, axis=1)
            value = tl.where((spoilt == 0)[:, None], value, 0.0)
            bias += spoilt[None, :]
        peak, total, attended = fold_tile(
            query, key, value, None, visible, scale, softcap, bias, peak, total, attended,
            MASKED, SOFTCAP, BIASED or MASKED, MASKED,
        )  # fmt: skip
    return peak, total, attended
