"""Causal attention over a paged cache: decode rows in batches, other rows one by one."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.backends.sdpa_product import attend_dense
from workers.attention.base import AttentionNeeds, LayerCache
from workers.attention.padded_batches import padded_batches, padding_mask
from workers.contract.attention_kind import AttentionKind
from workers.device.transfer import to_device
from workers.step.paged_step import PagedStep
from workers.step.rows import IntArray

_MAX_PADDING = 0.5


class _DecodeBatch(NamedTuple):
    """`rows` rows of one query each, over contexts padded to `length` tokens.

    kv_indices  int32[rows * length]  of what they see of their contexts; padding repeats the row's
                                      last one, so that no value of another request enters a product
    mask        [rows, 1, 1, length]  None if none is padded
    """

    kv_indices: torch.Tensor
    rows: int
    length: int
    mask: torch.Tensor | None


class _Chunk(NamedTuple):
    """A row of several queries, the step's tokens [start, stop), at the end of its context.

    kv_indices  int32[seen]           of what the queries see of the context; None if the chunk is
                                      the whole context
    mask        [stop - start, seen]  bottom-right causal, within the window; None if the chunk is
                                      the whole context, and seen whole, without a softcap
    """

    start: int
    stop: int
    kv_indices: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """How a step's rows are attended.

    decodes        the decode rows
    decode_tokens  int64[rows] for each of these batches: their indices in the step; empty if one
                   batch is the whole step
    chunks         the other rows
    kv_indices     int64[T], of the step's tokens
    """

    decodes: list[_DecodeBatch]
    decode_tokens: list[torch.Tensor]
    chunks: list[_Chunk]
    kv_indices: torch.Tensor

    @classmethod
    def of(cls, step: PagedStep, needs: AttentionNeeds) -> Self:
        decode_rows = np.flatnonzero(step.query_lens == 1)
        batches = padded_batches(_seen(step.contexts[decode_rows], needs), _MAX_PADDING)
        stops = np.cumsum(step.query_lens, dtype=np.int64)
        decodes = [_plan_decodes(step, decode_rows[batch], needs) for batch in batches]
        tokens: list[torch.Tensor] = []
        if len(batches) > 1 or 0 < len(decode_rows) < len(step.query_lens):
            indices = [stops[decode_rows[batch]] - 1 for batch in batches]
            tokens = to_device(indices, step.tokens.device)
        chunks = [
            _plan_chunk(step, row, int(stops[row]), needs)
            for row in np.flatnonzero(step.query_lens > 1).tolist()
        ]
        return cls(decodes, tokens, chunks, step.kv_indices)


def _plan_decodes(
    step: PagedStep, rows: npt.NDArray[np.intp], needs: AttentionNeeds
) -> _DecodeBatch:
    seen = _seen(step.contexts[rows], needs)
    return _DecodeBatch(
        kv_indices=_context_kv_indices(step, rows, seen, needs.block_size),
        rows=len(rows),
        length=int(seen.max()),
        mask=padding_mask(seen, needs.dtype, step.tokens.device),
    )


def _seen(contexts: IntArray, needs: AttentionNeeds) -> IntArray:
    """How many tokens, the last ones of each context int32[R], its last token sees."""
    window = needs.kind.window
    return contexts if window is None else np.minimum(contexts, np.int32(window))


def _plan_chunk(step: PagedStep, row: int, stop: int, needs: AttentionNeeds) -> _Chunk:
    length, context = int(step.query_lens[row]), int(step.contexts[row])
    window = needs.kind.window or context
    if length == context <= window and needs.kind.softcap is None:
        return _Chunk(stop - length, stop, None, None)
    # The first query sees `window - 1` tokens before it.
    seen = min(context, length + window - 1)
    device = step.tokens.device
    hidden = torch.full((length, seen), -torch.inf, dtype=needs.dtype, device=device)
    mask = hidden.triu(seen - length + 1)
    if window < seen:
        mask += hidden.tril_(seen - length - window)
    if length == context:
        return _Chunk(stop - length, stop, None, mask)
    own = np.array([row]), np.array([seen], np.int32)
    kv_indices = _context_kv_indices(step, *own, needs.block_size)
    return _Chunk(stop - length, stop, kv_indices, mask)


def _context_kv_indices(
    step: PagedStep, rows: npt.NDArray[np.intp], seen: IntArray, block_size: int
) -> torch.Tensor:
    """KV indices of the last `seen` tokens, int32[rows], of the contexts of `rows`, each padded to
    the most: int32[rows * most]."""
    last = step.contexts[rows, None] - 1
    positions = np.minimum(np.arange(int(seen.max())) + (last + 1 - seen[:, None]), last)
    within = np.arange(block_size, dtype=np.int32)
    which, index, offsets = to_device([rows, positions, within], step.tokens.device)
    width = int(last.max()) // block_size + 1
    blocks = step.block_tables[:, :width].index_select(0, step.slots.index_select(0, which))
    kv_indices = torch.add(offsets, blocks[:, :, None], alpha=block_size)
    return kv_indices.flatten(1).gather(1, index).flatten()


def attend_paged(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cache: LayerCache,
    plan: PagedPlan,
    kind: AttentionKind,
) -> torch.Tensor:
    """Each query attends to its row's context up to itself. [T, H, D] -> [T, H, D]"""
    if plan.decodes and not plan.decode_tokens:
        return _attend_decodes(queries, cache, plan.decodes[0], kind)
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    for batch, tokens in zip(plan.decodes, plan.decode_tokens, strict=True):
        decode_queries = queries.index_select(0, tokens)
        out.index_copy_(0, tokens, _attend_decodes(decode_queries, cache, batch, kind))
    for chunk in plan.chunks:
        part = slice(chunk.start, chunk.stop)
        if chunk.kv_indices is None:
            out[part] = _attend_chunk(queries[part], keys[part], values[part], chunk.mask, kind)
        else:
            seen = _gather(cache, chunk.kv_indices)
            out[part] = _attend_chunk(queries[part], *seen, chunk.mask, kind)
    return out


def _attend_decodes(
    queries: torch.Tensor, cache: LayerCache, batch: _DecodeBatch, kind: AttentionKind
) -> torch.Tensor:
    """[rows, H, D] -> [rows, H, D]. Query heads that share a KV head act as its queries."""
    kv_heads, head_dim = cache.keys.shape[2:]
    keys, values = _gather(cache, batch.kv_indices)
    shape = (batch.rows, batch.length, kv_heads, head_dim)
    attended = attend_dense(
        queries.view(batch.rows, kv_heads, -1, head_dim),
        keys.view(shape).transpose(1, 2),
        values.view(shape).transpose(1, 2),
        kind,
        batch.mask,
    )
    return attended.flatten(1, 2)


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
) -> torch.Tensor:
    """[Q, H, D] over [L, Hkv, D] -> [Q, H, D]; without a mask, L = Q and causal.

    SDPA's batch are the KV heads, and its heads the query heads that share one, so that keys and
    values are expanded over them without a copy.
    """
    length, heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    attended = attend_dense(
        queries.view(length, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        keys.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        values.transpose(0, 1)[:, None].expand(-1, group, -1, -1),
        kind,
        mask,
        is_causal=mask is None,
    )
    return attended.permute(2, 0, 1, 3).flatten(1, 2)
