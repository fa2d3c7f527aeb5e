"""Attention by xformers, for encoders only: its paged masks prescribe the page size."""

from typing import Any

import torch

from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache, Package
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class XformersBackend:
    """`memory_efficient_attention` under a block-diagonal mask.

    Written to the documented interface. xformers waits for the copy of a mask's offsets.
    """

    capabilities = Capabilities(
        causal_paged=False,
        bidirectional=True,
        graph_safe=False,
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
        head_dims=range(8, 257, 8),
        requires=Package("xformers", "pip install xformers, built for the installed torch"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._scale = needs.kind.scale
        self._group = needs.num_heads // needs.num_kv_heads
        self._mask: Any = imported("xformers.ops.fmha.attn_bias", "BlockDiagonalMask")
        self._attend = imported("xformers.ops", "memory_efficient_attention_forward")

    def plan_paged(self, step: PagedStep) -> Any:
        raise TypeError("xformers attends without a cache")

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: Any
    ) -> None:
        raise TypeError("xformers attends without a cache")

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: Any,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise TypeError("xformers attends without a cache")

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> Any:
        """The step's mask."""
        return self._mask.from_seqlens(step.query_lens.tolist())

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        attended: torch.Tensor = self._attend(
            queries[None],
            self._every_head(keys)[None],
            self._every_head(values)[None],
            attn_bias=plan,
            scale=self._scale,
        )
        return attended[0]

    def _every_head(self, states: torch.Tensor) -> torch.Tensor:
        """Repeat keys or values [T, Hkv, D] for each query head, [T, H, D]."""
        return states.repeat_interleave(self._group, dim=1) if self._group > 1 else states
