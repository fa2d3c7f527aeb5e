"""The control group: softmax(Q K^T) V, one query at a time, in float32.

Tensors have the size of a query's own context: no other row of the step and no division of a prompt
into chunks changes a bit of its result.
"""

import sys

import torch

from workers.attention.base import EVERY_KIND, QKV, AttentionBackend, AttentionNeeds, LayerCache
from workers.attention.distance_vectors import DistanceVectors
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_PackedPlan = tuple[list[int], list[int], torch.Tensor | None]
"""The tokens of each row, how many of them are attended to, and the bias."""


class NaiveBackend(AttentionBackend):
    """Slow attention by its definition, for tests and bitwise reproducible runs."""

    label = "naive"
    capabilities = EVERY_KIND

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        # A query sees no token that is so far away or farther.
        self._reach = needs.kind.window or sys.maxsize

    def plan_paged(self, step: PagedStep) -> PagedStep:
        return step

    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: PagedStep,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        queries = torch.split(qkv.queries, plan.query_lens.tolist())
        rows = zip(queries, plan.block_tables[plan.slots], plan.contexts.tolist(), strict=True)
        attended: list[torch.Tensor] = []
        size = self._needs.block_size
        for own, blocks, context in rows:
            seen_from = max(0, context - len(own) + 1 - self._reach)
            positions = torch.arange(seen_from, context, device=blocks.device)
            kv_indices = blocks[positions // size] * size + positions % size
            found = cache.read(kv_indices, own.dtype)
            attended.append(self._attend_row(own, *found, sinks=sinks))
        return torch.cat(attended)

    def plan_packed(
        self, step: PackedStep, position_bias: torch.Tensor | None = None
    ) -> _PackedPlan:
        lengths = step.query_lens
        attended = lengths if step.attended_lens is None else step.attended_lens
        return lengths.tolist(), attended.tolist(), position_bias

    def attend_packed(
        self, qkv: QKV, plan: _PackedPlan, vectors: DistanceVectors | None = None
    ) -> torch.Tensor:
        lengths, attended, bias = plan
        queries, keys, values = (torch.split(part, lengths) for part in qkv)
        rows = zip(queries, keys, values, attended, strict=True)
        return torch.cat([self._attend_row(*row, bias, vectors) for row in rows])

    attend_disentangled = attend_packed

    def _attend_row(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        visible: int = sys.maxsize,
        bias: torch.Tensor | None = None,
        vectors: DistanceVectors | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from queries [Q, H, D], the row's last tokens, to its keys and values [L, Hkv, D],
        the first `visible` of them.

        `bias` is that of `plan_packed`. With `vectors` H and Hkv are the same.
        """
        length, out = len(keys), torch.empty_like(queries, memory_format=torch.contiguous_format)
        for index, query in enumerate(queries):
            place = length - len(queries) + index
            stop = place + 1 if self._kind.causal else min(length, visible, place + self._reach)
            seen = slice(max(0, place + 1 - self._reach), stop)
            grouped = query.float().reshape(keys.shape[1], -1, query.shape[-1])
            own_keys, own_values = keys[seen].float(), values[seen].float()
            scores = grouped @ own_keys.permute(1, 2, 0).contiguous() * self._kind.scale
            if (cap := self._kind.softcap) is not None:
                scores = cap * torch.tanh(scores / cap)
            if vectors is not None:
                zero = len(vectors.buckets) // 2 + place + 1
                buckets = vectors.buckets[zero - seen.stop : zero - seen.start].flip(0)
                by_query = vectors.keys[:, buckets].float() * grouped
                by_key = vectors.queries[:, buckets].float() * own_keys.transpose(0, 1)
                added = (by_query + by_key).sum(-1) * self._kind.scale
                scores = scores + added.reshape(scores.shape)
            if bias is not None:
                zero = bias.shape[1] // 2 - place
                own_bias = bias[:, zero + seen.start : zero + seen.stop]
                scores = scores + own_bias.float().reshape(scores.shape)
            if sinks is not None:
                scores = torch.cat([scores, sinks.view(*scores.shape[:2], 1)], dim=-1)
            weights = scores.softmax(dim=-1)[..., : len(own_keys)]
            attended = weights @ own_values.transpose(0, 1).contiguous()
            out[index] = attended.view_as(query)
        return out
