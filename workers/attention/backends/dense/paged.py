"""Causal attention over a paged cache, whose keys and values are gathered for torch."""

import torch

from workers.attention.backends.dense.paged_plan import DecodeBatch, PagedPlan, Prefix
from workers.attention.backends.dense.product import attend_dense, attend_dense_with_lse
from workers.attention.base import LayerCache
from workers.contract.model_config import AttentionKind

_Results = tuple[torch.Tensor, ...]
"""The attention output [N, H, D]; behind it, in a step with prefixes that are attended once, the
log-sum-exp of the scores, float32[N, H]."""


def attend_paged(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cache: LayerCache,
    plan: PagedPlan,
    kind: AttentionKind,
) -> torch.Tensor:
    """Each query attends to its row's context up to itself. [T, H, D] -> [T, H, D]"""
    out, *lse = _attend_rows(queries, keys, values, cache, plan, kind)
    for prefix in plan.prefixes:
        tokens = slice(prefix.start, prefix.stop)
        _add_prefix(queries[tokens], cache, prefix, kind, out[tokens], lse[0][tokens])
    return out


def _add_prefix(
    queries: torch.Tensor,
    cache: LayerCache,
    prefix: Prefix,
    kind: AttentionKind,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Take a prefix into what its queries [N, H, D] have of their own contexts: `out` [N, H, D],
    with log-sum-exps `lse` [N, H]. Query heads that share a KV head act as its queries."""
    keys, values = _gather(cache, prefix.kv_indices)
    count, kv_heads = len(queries), keys.shape[1]
    packed = queries.view(count, kv_heads, -1, queries.shape[2]).transpose(0, 1).flatten(1, 2)
    seen = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    attended, prefix_lse = (
        part.view(kv_heads, count, -1, *part.shape[3:]).transpose(0, 1)
        for part in attend_dense_with_lse(packed[None], *seen, kind, None)
    )
    share = (prefix_lse - lse.view(prefix_lse.shape)).sigmoid_()
    out.view(attended.shape).lerp_(attended, share[..., None].to(out.dtype))


def _attend_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cache: LayerCache,
    plan: PagedPlan,
    kind: AttentionKind,
) -> _Results:
    """What each query sees of its row's context, but for a prefix that is attended once."""
    with_lse = bool(plan.prefixes)
    if plan.decodes and not plan.decode_tokens:
        return _attend_decodes(queries, cache, plan.decodes[0], kind, with_lse)
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    results = (out, torch.empty(queries.shape[:2])) if with_lse else (out,)
    for batch, tokens in zip(plan.decodes, plan.decode_tokens, strict=True):
        own = queries.index_select(0, tokens)
        attended = _attend_decodes(own, cache, batch, kind, with_lse)
        for result, part in zip(results, attended, strict=True):
            result.index_copy_(0, tokens, part)
    for chunk in plan.chunks:
        tokens = slice(chunk.start, chunk.stop)
        seen = keys[tokens], values[tokens]
        if chunk.kv_indices is not None:
            seen = _gather(cache, chunk.kv_indices)
        attended = _attend_chunk(queries[tokens], *seen, chunk.mask, kind, with_lse)
        for result, part in zip(results, attended, strict=True):
            result[tokens] = part
    return results


def _attend_decodes(
    queries: torch.Tensor,
    cache: LayerCache,
    batch: DecodeBatch,
    kind: AttentionKind,
    with_lse: bool,
) -> _Results:
    """[rows, H, D] -> [rows, H, D]. Query heads that share a KV head act as its queries."""
    kv_heads, head_dim = cache.keys.shape[2:]
    keys, values = _gather(cache, batch.kv_indices)
    shape = (batch.rows, batch.length, kv_heads, head_dim)
    attended = _product(
        queries.view(batch.rows, kv_heads, -1, head_dim),
        keys.view(shape).transpose(1, 2),
        values.view(shape).transpose(1, 2),
        kind,
        batch.mask,
        with_lse=with_lse,
    )
    return tuple(part.flatten(1, 2) for part in attended)


def _gather(cache: LayerCache, kv_indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `kv_indices` [N]: [N, Hkv, D] each.

    The cache is viewed as a matrix, because index_select copies whole rows of a matrix at once.
    """
    kv_heads, head_dim = cache.keys.shape[2:]
    matrix = (-1, kv_heads * head_dim)
    keys = cache.keys.view(matrix).index_select(0, kv_indices)
    values = cache.values.view(matrix).index_select(0, kv_indices)
    return keys.view(-1, kv_heads, head_dim), values.view(-1, kv_heads, head_dim)


def _attend_chunk(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    kind: AttentionKind,
    with_lse: bool,
) -> _Results:
    """[Q, H, D] over [L, Hkv, D] -> [Q, H, D]; without a mask, L = Q and causal.

    SDPA's batch are the KV heads, and its heads the query heads that share one, so that keys and
    values are expanded over them without a copy.
    """
    length, heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    attended = _product(
        queries.view(length, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        keys.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        values.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        kind,
        mask,
        is_causal=mask is None,
        with_lse=with_lse,
    )
    return tuple(part.movedim(2, 0).flatten(1, 2) for part in attended)


def _product(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kind: AttentionKind,
    mask: torch.Tensor | None,
    *,
    is_causal: bool = False,
    with_lse: bool,
) -> _Results:
    if with_lse:
        return attend_dense_with_lse(queries, keys, values, kind, mask, is_causal=is_causal)
    return (attend_dense(queries, keys, values, kind, mask, is_causal=is_causal),)
