"""Attention by torch's scaled_dot_product_attention: any device, and the CPU's hot path."""

import torch

from workers.attention.backends.sdpa_bidirectional import BidirectionalPlan, attend_bidirectional
from workers.attention.backends.sdpa_paged import PagedPlan, attend_paged
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache
from workers.step.tensors import StepTensors


class SdpaBackend:
    """Gathers what is paged or ragged into dense batches and leaves the rest to torch."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        graph_safe=False,
        devices=("cpu", "cuda"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs

    def plan(self, step: StepTensors) -> PagedPlan | BidirectionalPlan:
        if self._needs.paged:
            return PagedPlan.of(step, self._needs)
        return BidirectionalPlan.of(step, self._needs.dtype)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: PagedPlan
    ) -> None:
        cache.write(keys, values, plan.kv_indices)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache | None,
        plan: PagedPlan | BidirectionalPlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if isinstance(plan, BidirectionalPlan):
            return attend_bidirectional(queries, keys, values, plan)
        assert cache is not None, "a paged plan comes with a cache"
        return attend_paged(queries, keys, values, cache, plan)
