"""The control group: softmax(Q K^T) V, one query at a time.

Every query is computed in float32 from tensors of its own context's size, so its result is bitwise
the same whatever else is in the step and however its prompt was divided into chunks.
"""

import sys
from dataclasses import dataclass

import torch

from workers.attention.base import AttentionNeeds, Capabilities, LayerCache
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class _Row:
    """A row: the step's tokens [start, stop), which are the last of the `context` tokens in
    `blocks`."""

    start: int
    stop: int
    context: int
    blocks: torch.Tensor


@dataclass(frozen=True, slots=True)
class NaivePlan:
    """A step's rows, and the KV indices of its tokens."""

    rows: list[_Row]
    kv_indices: torch.Tensor


@dataclass(frozen=True, slots=True)
class TextPlan:
    """The number of tokens of each row, and the position bias [H, 2 * L - 1] if there is one."""

    lengths: list[int]
    position_bias: torch.Tensor | None

    def bias_of(self, query: int, keys: slice) -> torch.Tensor | None:
        """[H, keys]: what is added to the scores of the token `query` and those that it sees."""
        if self.position_bias is None:
            return None
        zero = self.position_bias.shape[1] // 2
        return self.position_bias[:, zero + keys.start - query : zero + keys.stop - query]


class NaiveBackend:
    """Attention by its definition, for tests and bitwise reproducible runs; slow."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        bidirectional_windows=True,
        softcap=True,
        position_bias=True,
        graph_safe=False,
        devices=("cpu", "cuda"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._kind = needs.kind
        # A query sees no token that is so far away or farther.
        self._reach = needs.kind.window or sys.maxsize

    def plan_paged(self, step: PagedStep) -> NaivePlan:
        rows: list[_Row] = []
        start = 0
        tables = step.block_tables[step.slots]
        for index, length in enumerate(step.query_lens.tolist()):
            rows.append(_Row(start, start + length, int(step.contexts[index]), tables[index]))
            start += length
        return NaivePlan(rows, step.kv_indices)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: NaivePlan
    ) -> None:
        cache.write(keys, values, plan.kv_indices)

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: NaivePlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for row in plan.rows:
            row_keys, row_values = _cached(cache.keys, row), _cached(cache.values, row)
            cached = row.context - (row.stop - row.start)
            for position, token in enumerate(range(row.start, row.stop), start=cached):
                seen = slice(max(0, position + 1 - self._reach), position + 1)
                out[token] = self._attend(queries[token], row_keys[seen], row_values[seen])
        return out

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> TextPlan:
        return TextPlan(step.query_lens.tolist(), position_bias)

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: TextPlan
    ) -> torch.Tensor:
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        stop = 0
        for length in plan.lengths:
            start, stop = stop, stop + length
            for token in range(start, stop):
                first = max(start, token + 1 - self._reach)
                seen = slice(first, min(stop, token + self._reach))
                bias = plan.bias_of(token, seen)
                out[token] = self._attend(queries[token], keys[seen], values[seen], bias)
        return out

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One query [H, D] over keys and values [L, Hkv, D], with `bias` [H, L] or none; returns
        [H, D]."""
        grouped = query.float().reshape(keys.shape[1], -1, query.shape[-1])
        scores = grouped @ keys.float().permute(1, 2, 0).contiguous() * self._kind.scale
        if (cap := self._kind.softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        if bias is not None:
            scores = scores + bias.float().reshape(scores.shape)
        attended = scores.softmax(dim=-1) @ values.float().transpose(0, 1).contiguous()
        return attended.view_as(query)


def _cached(cached: torch.Tensor, row: _Row) -> torch.Tensor:
    """A row's cached keys or values, [L, Hkv, D], in order."""
    block_size = cached.shape[1]
    blocks = row.blocks[: -(-row.context // block_size)]
    return cached[blocks].flatten(0, 1)[: row.context]
