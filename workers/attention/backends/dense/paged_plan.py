"""How the rows of a step over a paged cache are attended: prefixes that rows share once, decode
rows in batches, other rows one by one."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.base import AttentionNeeds
from workers.attention.padded_batches import padded_batches, padding_mask
from workers.device.transfer import to_device
from workers.device.tuning import CPU_PREFIX_MIN_GAIN
from workers.step.paged_step import PagedStep
from workers.step.rows import NO_GROUPS, IntArray, offsets

_MAX_PADDING = 0.5


class Prefix(NamedTuple):
    """Tokens with which all rows of the step's tokens [start, stop) begin; kv_indices int32[P]."""

    start: int
    stop: int
    kv_indices: torch.Tensor


class DecodeBatch(NamedTuple):
    """`rows` rows of one query each, over contexts padded to `length` tokens.

    kv_indices  int32[rows * length]  of what they see of their contexts; padding repeats the row's
                                      last one, so that no value of another request enters a product
    mask        [rows, 1, 1, length]  None if none is padded
    """

    kv_indices: torch.Tensor
    rows: int
    length: int
    mask: torch.Tensor | None


class Chunk(NamedTuple):
    """A row of several queries, the step's tokens [start, stop), at the end of its context (here
    and above: of what is behind its prefix, if that is attended once).

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

    prefixes       those that are attended once
    decodes        the decode rows
    decode_tokens  int64[rows] for each of these batches: their indices in the step; empty if one
                   batch is the whole step
    chunks         the other rows
    kv_indices     int64[T], of the step's tokens
    """

    prefixes: list[Prefix]
    decodes: list[DecodeBatch]
    decode_tokens: list[torch.Tensor]
    chunks: list[Chunk]
    kv_indices: torch.Tensor

    @classmethod
    def of(cls, step: PagedStep, needs: AttentionNeeds) -> Self:
        starts = offsets(step.query_lens)
        groups = _paying_groups(step, needs, starts)
        own = _own_contexts(step, groups)
        seen = _seen(own, needs)
        decode_rows = np.flatnonzero(step.query_lens == 1)
        batches = padded_batches(seen[decode_rows], _MAX_PADDING)
        decodes = [_plan_decodes(step, decode_rows[batch], seen, needs) for batch in batches]
        tokens: list[torch.Tensor] = []
        if len(batches) > 1 or 0 < len(decode_rows) < len(step.query_lens):
            indices = [starts[decode_rows[batch]].astype(np.int64) for batch in batches]
            tokens = to_device(indices, step.tokens.device)
        chunks = [
            _plan_chunk(step, row, int(starts[row]), int(own[row]), needs)
            for row in np.flatnonzero(step.query_lens > 1).tolist()
        ]
        prefixes = _plan_prefixes(step, groups, starts, needs.block_size)
        return cls(prefixes, decodes, tokens, chunks, step.kv_indices)


def _paying_groups(step: PagedStep, needs: AttentionNeeds, starts: IntArray) -> IntArray:
    """Those of the step's groups whose prefix takes less time if it is attended once."""
    plain = needs.kind.window is None and needs.kind.softcap is None
    if not len(step.groups) or not plain or step.slots.device.type != "cpu":
        return NO_GROUPS
    rows, members, prefixes = step.groups.astype(np.int64).T
    spared_keys = (members - 1) * prefixes * needs.num_kv_heads
    merged_queries = (starts[rows + members] - starts[rows]) * needs.num_heads
    gain = (spared_keys - merged_queries) * needs.head_dim
    return step.groups[gain >= CPU_PREFIX_MIN_GAIN * torch.get_num_threads()]


def _own_contexts(step: PagedStep, groups: IntArray) -> IntArray:
    """int32[R]: how many tokens of each context are behind a prefix that is attended once."""
    if not len(groups):
        return step.contexts
    own = step.contexts.copy()
    for first, members, prefix in groups.tolist():
        own[first : first + members] -= prefix
    return own


def _plan_prefixes(
    step: PagedStep, groups: IntArray, starts: IntArray, block_size: int
) -> list[Prefix]:
    within = torch.arange(block_size, dtype=torch.int32)
    prefixes: list[Prefix] = []
    for first, members, tokens in groups.tolist():
        blocks = step.block_tables[step.slots[first], : tokens // block_size]
        kv_indices = torch.add(within, blocks[:, None], alpha=block_size).flatten()
        start, stop = int(starts[first]), int(starts[first + members])
        prefixes.append(Prefix(start, stop, kv_indices))
    return prefixes


def _plan_decodes(
    step: PagedStep, rows: npt.NDArray[np.intp], seen: IntArray, needs: AttentionNeeds
) -> DecodeBatch:
    own = seen[rows]
    return DecodeBatch(
        kv_indices=_context_kv_indices(step, rows, own, needs.block_size),
        rows=len(rows),
        length=int(own.max()),
        mask=padding_mask(own, needs.dtype, step.tokens.device),
    )


def _seen(contexts: IntArray, needs: AttentionNeeds) -> IntArray:
    """How many tokens, the last ones of each context int32[R], its last token sees."""
    window = needs.kind.window
    return contexts if window is None else np.minimum(contexts, np.int32(window))


def _plan_chunk(
    step: PagedStep, row: int, start: int, context: int, needs: AttentionNeeds
) -> Chunk:
    length = int(step.query_lens[row])
    stop = start + length
    window = needs.kind.window or context
    if length == context <= window and needs.kind.softcap is None:
        return Chunk(start, stop, None, None)
    # The first query sees `window - 1` tokens before it.
    seen = min(context, length + window - 1)
    device = step.tokens.device
    hidden = torch.full((length, seen), -torch.inf, dtype=needs.dtype, device=device)
    mask = hidden.triu(seen - length + 1)
    if window < seen:
        mask += hidden.tril_(seen - length - window)
    if length == context:
        return Chunk(start, stop, None, mask)
    own = np.array([row]), np.array([seen], np.int32)
    kv_indices = _context_kv_indices(step, *own, needs.block_size)
    return Chunk(start, stop, kv_indices, mask)


def _context_kv_indices(
    step: PagedStep, rows: npt.NDArray[np.intp], seen: IntArray, block_size: int
) -> torch.Tensor:
    """KV indices of the last `seen` tokens, int32[rows], of the contexts of `rows`, each padded to
    the most: int32[rows * most]."""
    last = step.contexts[rows, None] - 1
    positions = np.minimum(np.arange(int(seen.max())) + (last + 1 - seen[:, None]), last)
    first, end = int(positions[:, 0].min()) // block_size, int(last.max()) // block_size + 1
    within = np.arange(block_size, dtype=np.int32)
    arrays = [rows, positions - first * block_size, within]
    which, index, places = to_device(arrays, step.tokens.device)
    blocks = step.block_tables[:, first:end].index_select(0, step.slots.index_select(0, which))
    kv_indices = torch.add(places, blocks[:, :, None], alpha=block_size)
    return kv_indices.flatten(1).gather(1, index).flatten()
