"""FlashAttention 4 over a cache in FP8, which it cannot read on Hopper."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from workers.attention.backends.flash_attn import FlashAttention4Backend
from workers.attention.backends.triton import PagedPlan
from workers.attention.base import AttentionNeeds, LayerCache
from workers.device.tuning import FP8_SCRATCH_TOKENS
from workers.step.paged_step import PagedStep


class ScratchPlan(NamedTuple):
    """The rows' blocks int32[R, N], and the library's arguments. Its page table has their places
    in the scratch."""

    blocks: torch.Tensor
    arguments: dict[str, Any]


class FlashAttention4FP8Backend(FlashAttention4Backend):
    """Chunks attend to a copy of their contexts in the model's dtype, in a scratch that all layers
    share. Where it is too small, and for decode rows, our own kernels read the cache itself.
    """

    label = "flash_attn4 with a scratch"
    capabilities = replace(FlashAttention4Backend.capabilities, fp8_cache=(True,))

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        # Imported here, so that reading the capabilities does not need Triton.
        from workers.kernels.attention.dequantize import copy_contexts  # noqa: PLC0415

        self._copy_contexts = copy_contexts
        blocks, page = FP8_SCRATCH_TOKENS // needs.block_size, needs.block_size
        # Allocated once: the memory budget counts it, and captured steps write to it.
        self._scratch = torch.zeros(
            (2, blocks, page, needs.num_kv_heads, needs.head_dim),
            dtype=needs.dtype,
            device=needs.device,
        )

    def _plan_others(self, step: PagedStep, first: int) -> ScratchPlan | int:
        page, room = self._needs.block_size, self._scratch.shape[1]
        if (-(-step.contexts[first:] // page)).sum() > room:
            return super(FlashAttention4Backend, self)._plan_others(step, first)
        arguments = super()._plan_others(step, first)
        blocks = arguments["page_table"]
        used = (arguments["seqused_k"] + (page - 1)) // page
        index = torch.arange(blocks.shape[1], device=blocks.device)
        places = (used.cumsum(0) - used)[:, None] + index
        arguments["page_table"] = places.clamp_(max=room - 1).int()
        return ScratchPlan(blocks, arguments)

    def _attend_others(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        if isinstance(plan.others, int):
            super(FlashAttention4Backend, self)._attend_others(queries, cache, plan, out, sinks)
            return
        blocks, arguments = plan.others
        rows = blocks, arguments["seqused_k"], arguments["cu_seqlens_q"], arguments["page_table"]
        self._copy_contexts(cache, *rows, self._scratch, self._kind.window)
        self._attend(queries, *self._scratch, causal=True, out=out, **arguments, **self._options)
