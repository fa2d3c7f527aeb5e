"""The control group: softmax(Q K^T) V, one query at a time.

Every query is computed in float32 from tensors of its own context's size. No other row of the step
and no division of a prompt into chunks changes a bit of its result.
"""

import sys
from dataclasses import dataclass

import torch

from workers.attention.base import QKV, AttentionBackend, AttentionNeeds, Capabilities, LayerCache
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class TextPlan:
    """The number of tokens of each row, and a position bias [H, 2 * L - 1] or none."""

    lengths: list[int]
    position_bias: torch.Tensor | None

    def bias_of(self, query: int, keys: slice) -> torch.Tensor | None:
        """[H, keys]: what is added to the scores of the token `query` and those that it sees."""
        if self.position_bias is None:
            return None
        zero = self.position_bias.shape[1] // 2
        return self.position_bias[:, zero + keys.start - query : zero + keys.stop - query]


class NaiveBackend(AttentionBackend):
    """Slow attention by its definition, for tests and bitwise reproducible runs."""

    label = "naive"
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
        super().__init__(needs)
        # A query sees no token that is so far away or farther.
        self._reach = needs.kind.window or sys.maxsize

    def plan_paged(self, step: PagedStep) -> PagedStep:
        return step

    def attend_paged(
        self, qkv: QKV, cache: LayerCache, plan: PagedStep, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        queries = qkv.queries
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        lengths = zip(plan.query_lens.tolist(), plan.contexts.tolist(), strict=True)
        token = 0
        for blocks, (length, context) in zip(plan.block_tables[plan.slots], lengths, strict=True):
            keys, values = (_cached(part, blocks, context) for part in (cache.keys, cache.values))
            for position in range(context - length, context):
                seen = slice(max(0, position + 1 - self._reach), position + 1)
                out[token] = self._attend(queries[token], keys[seen], values[seen])
                token += 1
        return out

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> TextPlan:
        return TextPlan(step.query_lens.tolist(), position_bias)

    def attend_packed(self, qkv: QKV, plan: TextPlan) -> torch.Tensor:
        queries, keys, values = qkv
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
        """One query [H, D] over keys and values [L, Hkv, D], with `bias` [H, L] or none. Returns
        [H, D]."""
        grouped = query.float().reshape(keys.shape[1], -1, query.shape[-1])
        scores = grouped @ keys.float().permute(1, 2, 0).contiguous() * self._kind.scale
        if (cap := self._kind.softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        if bias is not None:
            scores = scores + bias.float().reshape(scores.shape)
        attended = scores.softmax(dim=-1) @ values.float().transpose(0, 1).contiguous()
        return attended.view_as(query)


def _cached(cached: torch.Tensor, blocks: torch.Tensor, context: int) -> torch.Tensor:
    """The keys or values of the first `context` tokens in `blocks`, [L, Hkv, D], in order."""
    used = -(-context // cached.shape[1])
    return cached[blocks[:used]].flatten(0, 1)[:context]
