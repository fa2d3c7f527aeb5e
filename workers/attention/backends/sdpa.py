"""Attention by torch's scaled_dot_product_attention, on any device: the default on a CPU.

Rows of different lengths are gathered into dense batches of similar lengths, which torch attends.
"""

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from workers.attention.base import EVERY_KIND, QKV, AttentionBackend, LayerCache
from workers.attention.distance_vectors import DistanceVectors
from workers.contract.model_config import AttentionKind
from workers.device.transfer import to_device
from workers.device.tuning import CPU_PREFIX_MIN_GAIN
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import NO_GROUPS, IntArray, offsets

_MAX_TEXT_PADDING, _MAX_DECODE_PADDING = 0.25, 0.5
"""The part of a dense batch's positions that may be padding."""

_Results = tuple[torch.Tensor, ...]
"""The attention output [N, H, D]. Behind it, in a step with prefixes that are attended once, the
log-sum-exp of the scores, float32[N, H]."""


class Prefix(NamedTuple):
    """The tokens with which all rows of these `tokens` of the step begin, kv_indices int32[P]."""

    tokens: slice
    kv_indices: torch.Tensor


class DecodeBatch(NamedTuple):
    """N rows of one query each, over contexts padded to L tokens.

    kv_indices  int32[N * L] of what they see of their contexts. Padding repeats a row's last one,
                so that no value of another request enters a product.
    mask        [N, 1, 1, L]; None if none is padded
    tokens      int64[N], the rows' indices in the step; None if they are the whole step
    """

    kv_indices: torch.Tensor
    mask: torch.Tensor | None
    tokens: torch.Tensor | None


class Chunk(NamedTuple):
    """A row of several queries, Q `tokens` of the step, at the end of its context.

    Here and above, a context is what is behind a prefix that is attended once.

    kv_indices  int32[seen] of what the queries see. None if the chunk is the whole context, and the
                cache has the chunk's own keys and values and not their FP8.
    mask        [Q, seen], bottom-right causal, within the window. None if the chunk is the whole
                context, and seen whole, without a softcap.
    """

    tokens: slice
    kv_indices: torch.Tensor | None
    mask: torch.Tensor | None


class DensePlan(NamedTuple):
    """How a step's rows are attended, and the prefixes that are attended once. `kv_indices` are
    the step's."""

    prefixes: list[Prefix]
    decodes: list[DecodeBatch]
    chunks: list[Chunk]
    kv_indices: torch.Tensor


class TextBatch(NamedTuple):
    """`rows` rows padded to `length` tokens. An additive `mask` broadcasts to [rows, H, length,
    length]. None without padding, window and position bias."""

    rows: int
    length: int
    mask: torch.Tensor | None


class BidirectionalPlan(NamedTuple):
    """How a step's tokens are gathered into dense batches, one after another, and restored.

    gather   int64[P], the token at each padded position. Padding repeats its row's last token, so
             that no value of another row, finite or not, enters a product.
    restore  int64[T], the padded position of each token
    Both are None if the step's tokens already are one dense batch.
    """

    batches: list[TextBatch]
    gather: torch.Tensor | None = None
    restore: torch.Tensor | None = None


class SdpaBackend(AttentionBackend):
    """Gathers paged or ragged rows into dense batches, which torch attends."""

    label = "sdpa"
    capabilities = replace(EVERY_KIND, prefix_groups=True)

    def plan_paged(self, step: PagedStep) -> DensePlan:
        starts, size = offsets(step.query_lens), self._needs.block_size
        groups, own = self._paying_groups(step, starts), step.contexts.copy()
        prefixes: list[Prefix] = []
        for first, members, tokens in groups.tolist():
            own[first : first + members] -= tokens
            blocks = step.block_tables[step.slots[first], : tokens // size]
            kv_indices = torch.arange(size, dtype=torch.int32) + blocks[:, None] * size
            which = slice(int(starts[first]), int(starts[first + members]))
            prefixes.append(Prefix(which, kv_indices.flatten()))
        chunks = [
            self._plan_chunk(step, row, int(starts[row]), int(own[row]))
            for row in np.flatnonzero(step.query_lens > 1).tolist()
        ]
        decodes = self._plan_decodes(step, starts, own)
        return DensePlan(prefixes, decodes, chunks, step.kv_indices)

    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: DensePlan,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended, *lse = self._attend_rows(qkv, cache, plan, sinks)
        for tokens, kv_indices in plan.prefixes:
            prefix = cache.read(kv_indices, qkv.queries.dtype)
            self._add_prefix(QKV(qkv.queries[tokens], *prefix), attended[tokens], lse[0][tokens])
        return attended

    def plan_packed(
        self, step: PackedStep, position_bias: torch.Tensor | None = None
    ) -> BidirectionalPlan:
        device, lengths = step.tokens.device, step.query_lens
        attended = lengths if step.attended_lens is None else step.attended_lens
        starts = np.cumsum(lengths) - lengths
        restore = np.empty(step.num_tokens, np.int64)
        gathered: list[npt.NDArray[np.int64]] = []
        batches: list[TextBatch] = []
        filled = 0
        for rows in padded_batches(lengths, _MAX_TEXT_PADDING):
            own = lengths[rows]
            places = np.arange(int(own.max()))
            tokens = starts[rows, None] + np.minimum(places, own[:, None] - 1)
            real = places < own[:, None]
            restore[tokens[real]] = filled + np.flatnonzero(real)
            filled += tokens.size
            gathered.append(tokens.ravel())
            mask = self._mask(attended[rows], len(places), position_bias, device)
            batches.append(TextBatch(len(rows), len(places), mask))
        if len(batches) == 1 and lengths.min() == batches[0].length:
            return BidirectionalPlan(batches)
        return BidirectionalPlan(batches, *to_device([np.concatenate(gathered), restore], device))

    def attend_packed(
        self, qkv: QKV, plan: BidirectionalPlan, vectors: DistanceVectors | None = None
    ) -> torch.Tensor:
        queries, keys, values = qkv
        group = queries.shape[1] // keys.shape[1]
        if group > 1:
            keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        parts = QKV(queries, keys, values)
        if plan.gather is not None:
            parts = parts.at(plan.gather)
        outputs: list[torch.Tensor] = []
        start = 0
        for batch in plan.batches:
            stop = start + batch.rows * batch.length
            shape = (batch.rows, batch.length, *queries.shape[1:])
            dense = QKV(*(part[start:stop].view(shape).transpose(1, 2) for part in parts))
            mask = batch.mask
            if vectors is not None:
                added = vectors.scores(dense.queries, dense.keys).mul_(self._kind.scale)
                mask = added if mask is None else added.add_(mask)
            (attended,) = attend_dense(dense, self._kind, mask)
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
            start = stop
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined if plan.restore is None else joined.index_select(0, plan.restore)

    attend_disentangled = attend_packed

    def _paying_groups(self, step: PagedStep, starts: IntArray) -> IntArray:
        """The step's groups whose prefix takes less time if it is attended once."""
        needs, kind = self._needs, self._kind
        plain = kind.window is None and kind.softcap is None and not kind.sinks
        if not len(step.groups) or not plain or step.slots.device.type != "cpu":
            return NO_GROUPS
        rows, members, prefixes = step.groups.astype(np.int64).T
        spared_keys = (members - 1) * prefixes * needs.num_kv_heads
        merged_queries = (starts[rows + members] - starts[rows]) * needs.num_heads
        gain = (spared_keys - merged_queries) * needs.head_dim
        return step.groups[gain >= CPU_PREFIX_MIN_GAIN * torch.get_num_threads()]

    def _plan_decodes(self, step: PagedStep, starts: IntArray, own: IntArray) -> list[DecodeBatch]:
        """Batches of the rows of one query, whose contexts have `own` int32[R] tokens."""
        device, window = step.tokens.device, self._kind.window
        decode_rows = np.flatnonzero(step.query_lens == 1)
        seen = own if window is None else np.minimum(own, np.int32(window))
        grouped = padded_batches(seen[decode_rows], _MAX_DECODE_PADDING)
        batches = [decode_rows[batch] for batch in grouped]
        tokens: list[torch.Tensor] | list[None] = [None]
        if len(batches) != 1 or len(batches[0]) < len(step.query_lens):
            tokens = to_device([starts[rows].astype(np.int64) for rows in batches], device)
        return [
            DecodeBatch(
                kv_indices=self._kv_indices(step, rows, seen[rows]),
                mask=self._padding_mask(seen[rows], int(seen[rows].max()), device),
                tokens=own_tokens,
            )
            for rows, own_tokens in zip(batches, tokens, strict=True)
        ]

    def _plan_chunk(self, step: PagedStep, row: int, start: int, context: int) -> Chunk:
        length, window = int(step.query_lens[row]), self._kind.window or context
        tokens = slice(start, start + length)
        # The first query sees `window - 1` tokens before it.
        seen, kv_indices = min(context, length + window - 1), None
        if length < context or self._needs.fp8_cache:
            kv_indices = self._kv_indices(step, np.array([row]), np.array([seen], np.int32))
        if length == context <= window and self._kind.softcap is None:
            return Chunk(tokens, kv_indices, None)
        hidden = self._hidden(length, seen, step.tokens.device)
        mask = hidden.triu(seen - length + 1)
        if window < seen:
            mask += hidden.tril_(seen - length - window)
        return Chunk(tokens, kv_indices, mask)

    def _kv_indices(
        self, step: PagedStep, rows: npt.NDArray[np.intp], seen: IntArray
    ) -> torch.Tensor:
        """KV indices of the last `seen` tokens of each context of `rows`, padded to the most.
        `seen` is int32[rows], the result int32[rows * most]."""
        size, last = self._needs.block_size, step.contexts[rows, None] - 1
        positions = np.minimum(np.arange(int(seen.max())) + (last + 1 - seen[:, None]), last)
        first, end = int(positions[:, 0].min()) // size, int(last.max()) // size + 1
        arrays = [rows, positions - first * size, np.arange(size, dtype=np.int32)]
        which, index, places = to_device(arrays, step.tokens.device)
        blocks = step.block_tables[:, first:end].index_select(0, step.slots.index_select(0, which))
        kv_indices = torch.add(places, blocks[:, :, None], alpha=size)
        return kv_indices.flatten(1).gather(1, index).flatten()

    def _hidden(self, rows: int, columns: int, device: torch.device) -> torch.Tensor:
        """A mask of -inf."""
        return torch.full((rows, columns), -torch.inf, dtype=self._needs.dtype, device=device)

    def _padding_mask(
        self, lengths: IntArray, longest: int, device: torch.device
    ) -> torch.Tensor | None:
        """An additive mask [rows, 1, 1, longest]: 0 for the first `lengths` tokens of each row,
        -inf for the others. None if there are no others."""
        if lengths.min() == longest:
            return None
        padding = np.arange(longest) >= lengths[:, None]
        (mask,) = to_device([np.where(padding, np.float32(-np.inf), np.float32(0))], device)
        return mask[:, None, None].to(self._needs.dtype)

    def _mask(
        self,
        lengths: IntArray,
        longest: int,
        position_bias: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor | None:
        """The mask of a batch of texts, `longest` with their padding, whose first `lengths` tokens
        are attended to."""
        padding, window = self._padding_mask(lengths, longest, device), self._kind.window
        masks = [] if padding is None else [padding]
        if position_bias is not None:
            zero = position_bias.shape[1] // 2
            diagonals = position_bias[:, zero + 1 - longest : zero + longest].to(self._needs.dtype)
            # Row i of the windows is that of query longest - 1 - i.
            masks.append(diagonals.unfold(1, longest, 1).flip(1))
        if window is not None and window < longest:
            far = self._hidden(longest, longest, device)
            masks.append(far.triu(window) + far.tril(-window))
        return reduce(torch.add, masks) if masks else None

    def _attend_rows(
        self, qkv: QKV, cache: LayerCache, plan: DensePlan, sinks: torch.Tensor | None
    ) -> _Results:
        """Attend what each query sees of its row's context, without a prefix attended once."""
        queries, with_lse = qkv.queries, bool(plan.prefixes)
        if plan.decodes and plan.decodes[0].tokens is None:
            return self._attend_decodes(queries, cache, plan.decodes[0], sinks, with_lse)
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        results = (out, torch.empty(queries.shape[:2])) if with_lse else (out,)
        for batch in plan.decodes:
            assert batch.tokens is not None, "there are other rows"
            own = queries.index_select(0, batch.tokens)
            attended = self._attend_decodes(own, cache, batch, sinks, with_lse)
            for result, part in zip(results, attended, strict=True):
                result.index_copy_(0, batch.tokens, part)
        for tokens, kv_indices, mask in plan.chunks:
            own = QKV(*(part[tokens] for part in qkv))
            if kv_indices is None and not own.keys.shape[1]:
                kv_indices = plan.kv_indices[tokens]  # noqa: PLW2901 - of a layer without own keys
            if kv_indices is not None:
                own = QKV(own.queries, *cache.read(kv_indices, queries.dtype))
            attended = self._attend_chunk(own, mask, sinks, with_lse)
            for result, part in zip(results, attended, strict=True):
                result[tokens] = part
        return results

    def _attend_decodes(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        batch: DecodeBatch,
        sinks: torch.Tensor | None,
        with_lse: bool,
    ) -> _Results:
        """[rows, H, D] -> [rows, H, D]. Query heads that share a KV head act as its queries."""
        rows, (kv_heads, head_dim) = len(queries), cache.keys.shape[2:]
        shape = (rows, -1, kv_heads, head_dim)
        found = cache.read(batch.kv_indices, queries.dtype)
        seen = (part.view(shape).transpose(1, 2) for part in found)
        dense = QKV(queries.view(rows, kv_heads, -1, head_dim), *seen)
        sinks = None if sinks is None else sinks.view(kv_heads, -1)
        attended = attend_dense(dense, self._kind, batch.mask, sinks=sinks, with_lse=with_lse)
        return tuple(part.flatten(1, 2) for part in attended)

    def _attend_chunk(
        self, qkv: QKV, mask: torch.Tensor | None, sinks: torch.Tensor | None, with_lse: bool
    ) -> _Results:
        """[Q, H, D] over [L, Hkv, D] -> [Q, H, D]. Without a mask, L = Q and causal.

        KV heads are SDPA's batch: keys and values are expanded over its heads without a copy.
        """
        length, heads, head_dim = qkv.queries.shape
        kv_heads = qkv.keys.shape[1]
        group = heads // kv_heads
        seen = (part.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for part in qkv[1:])
        grouped = qkv.queries.view(length, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        causal, sinks = mask is None, None if sinks is None else sinks.view(kv_heads, group, 1)
        attended = attend_dense(
            QKV(grouped, *seen),
            self._kind,
            mask,
            is_causal=causal,
            sinks=sinks,
            with_lse=with_lse,
        )
        return tuple(part.movedim(2, 0).flatten(1, 2) for part in attended)

    def _add_prefix(self, qkv: QKV, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Fold a prefix's keys and values into the output `out` [N, H, D] over own contexts.

        `lse` [N, H] are log-sum-exps of that output. Query heads that share a KV head act as its
        queries.
        """
        queries, keys, values = qkv
        count, kv_heads = len(queries), keys.shape[1]
        packed = queries.view(count, kv_heads, -1, queries.shape[2]).transpose(0, 1).flatten(1, 2)
        dense = QKV(packed[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
        attended, prefix_lse = (
            part.view(kv_heads, count, -1, *part.shape[3:]).transpose(0, 1)
            for part in attend_dense(dense, self._kind, None, with_lse=True)
        )
        share = (prefix_lse - lse.view(prefix_lse.shape)).sigmoid_()
        out.view(attended.shape).lerp_(attended, share[..., None].to(out.dtype))


def attend_dense(
    dense: QKV,
    kind: AttentionKind,
    mask: torch.Tensor | None,
    *,
    is_causal: bool = False,
    sinks: torch.Tensor | None = None,
    with_lse: bool = False,
) -> _Results:
    """Queries [B, H, Q, D] over keys and values [B, H, K, D] -> [B, H, Q, D].

    An additive `mask` broadcasts to [B, H, Q, K]; without a softcap `is_causal` may take its place.
    `sinks` broadcast to [B, H, Q]; with them there is no softcap. `with_lse`, on a CPU and without
    a softcap, adds each query's log-sum-exp, float32[B, H, Q], which torch's public function does
    not return.
    """
    queries, keys, values = dense
    if with_lse or (sinks is not None and queries.device.type == "cpu"):
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        attended, lse = attend(*dense, 0.0, is_causal, attn_mask=mask, scale=kind.scale)
        if sinks is not None:
            attended *= (lse - sinks).sigmoid_().unsqueeze(-1)
        return (attended, lse) if with_lse else (attended,)
    if sinks is not None:
        scores = torch.matmul(queries.float(), keys.float().transpose(-2, -1)).mul_(kind.scale)
        if is_causal:
            scores.add_(torch.full(scores.shape[-2:], -torch.inf, device=scores.device).triu_(1))
        scores = scores if mask is None else scores.add_(mask)
        among = torch.cat([scores, sinks.unsqueeze(-1).expand(*scores.shape[:-1], 1)], dim=-1)
        weights = among.softmax(dim=-1)[..., :-1]
        return (torch.matmul(weights, values.float()).to(queries.dtype),)
    if kind.softcap is None:
        attended = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=kind.scale
        )
        return (attended,)
    scores = torch.matmul(queries.float(), keys.float().transpose(-2, -1))
    scores = scores.mul_(kind.scale / kind.softcap).tanh_().mul_(kind.softcap)
    if mask is not None:
        scores.add_(mask)
    return (torch.matmul(scores.softmax(dim=-1), values.float()).to(queries.dtype),)


def padded_batches(lengths: IntArray, max_padding: float) -> list[list[int]]:
    """Group rows of the given lengths, from the longest down, into batches of little padding: at
    most the fraction `max_padding` of the positions. Within a batch, rows keep their order."""
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = used = 0
    by_length = np.argsort(-lengths, kind="stable")
    for row, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
        if batch and used + length < (1 - max_padding) * longest * (len(batch) + 1):
            batches.append(sorted(batch))
            batch = []
        if not batch:
            longest, used = length, 0
        batch.append(row)
        used += length
    if batch:
        batches.append(sorted(batch))
    return batches
