"""Attention by torch's scaled_dot_product_attention, on any device; the default on a CPU."""

import torch

from workers.attention.backends.dense.bidirectional import BidirectionalPlan, attend_bidirectional
from workers.attention.backends.dense.paged import attend_paged
from workers.attention.backends.dense.paged_plan import PagedPlan
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class SdpaBackend:
    """Gathers paged or ragged rows into dense batches, which torch attends."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        bidirectional_windows=True,
        softcap=True,
        position_bias=True,
        graph_safe=False,
        prefix_groups=True,
        devices=("cpu", "cuda"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs

    def plan_paged(self, step: PagedStep) -> PagedPlan:
        return PagedPlan.of(step, self._needs)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: PagedPlan
    ) -> None:
        cache.write(keys, values, plan.kv_indices)

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return attend_paged(queries, keys, values, cache, plan, self._needs.kind)

    def plan_packed(
        self, step: PackedStep, position_bias: torch.Tensor | None = None
    ) -> BidirectionalPlan:
        return BidirectionalPlan.of(step, self._needs, position_bias)

    def attend_packed(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: BidirectionalPlan,
    ) -> torch.Tensor:
        return attend_bidirectional(queries, keys, values, plan, self._needs.kind)
