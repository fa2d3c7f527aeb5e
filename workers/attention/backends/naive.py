"""The control group: softmax(Q K^T) V, one query at a time.

Every query is computed in float32 from tensors of its own context's size, so its result is bitwise
the same whatever else is in the step and however its prompt was divided into chunks.
"""

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


class NaiveBackend:
    """Attention by its definition, for tests and bitwise reproducible runs; slow."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        graph_safe=False,
        devices=("cpu", "cuda"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._scale = needs.head_dim**-0.5

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
            for seen, token in enumerate(range(row.start, row.stop), start=cached + 1):
                out[token] = self._attend(queries[token], row_keys[:seen], row_values[:seen])
        return out

    def plan_packed(self, step: PackedStep) -> list[int]:
        """The number of tokens of each row."""
        return step.query_lens.tolist()

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: list[int]
    ) -> torch.Tensor:
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        stop = 0
        for length in plan:
            start, stop = stop, stop + length
            for token in range(start, stop):
                out[token] = self._attend(queries[token], keys[start:stop], values[start:stop])
        return out

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """One query [H, D] over keys and values [L, Hkv, D]; returns [H, D]."""
        grouped = query.float().reshape(keys.shape[1], -1, query.shape[-1])
        scores = grouped @ keys.float().permute(1, 2, 0).contiguous() * self._scale
        attended = scores.softmax(dim=-1) @ values.float().transpose(0, 1).contiguous()
        return attended.view_as(query)


def _cached(cached: torch.Tensor, row: _Row) -> torch.Tensor:
    """A row's cached keys or values, [L, Hkv, D], in order."""
    block_size = cached.shape[1]
    blocks = row.blocks[: -(-row.context // block_size)]
    return cached[blocks].flatten(0, 1)[: row.context]
