"""Attention by FlashInfer's batch prefill kernels, which take rows of any length."""

from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch

from workers.attention.base import QKV, AttentionBackend, AttentionNeeds, Capabilities, LayerCache
from workers.device.transfer import on_device, to_device
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import IntArray, offsets

_HOST = torch.device("cpu")

_WORKSPACE_BYTES = 128 * 2**20
"""FlashInfer's recommendation for the partial results of split contexts."""


class FlashInferBackend(AttentionBackend):
    """One FlashInfer wrapper, planned for each step, with decode rows as one-token prompts.

    A CUDA graph would keep the lengths of one step, because the library plans on the host.
    """

    label = "flashinfer"
    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        softcap=True,
        graph_safe=False,
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16),
        head_dims=(64, 128, 256),
        compute_majors=(8, 9, 10, 12),
        requires=("flashinfer-python", "pip install flashinfer-python"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        self._heads = (needs.num_heads, needs.num_kv_heads, needs.head_dim)
        self._common: dict[str, Any] = {
            "sm_scale": needs.kind.scale,
            "window_left": -1 if needs.kind.window is None else needs.kind.window - 1,
            "logits_soft_cap": needs.kind.softcap,
            "q_data_type": needs.dtype,
            "kv_data_type": needs.dtype,
        }
        kind = "Paged" if needs.paged else "Ragged"
        wrapper = resolve_name(f"flashinfer:BatchPrefillWith{kind}KVCacheWrapper")
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=needs.device)
        self._wrapper = wrapper(workspace, "NHD")
        self._planned = torch.cuda.Event()

    def plan_paged(self, step: PagedStep) -> PagedStep:
        """Return the step itself: FlashInfer keeps the plan.

        Waits until the plan before has left the pinned buffer that this one overwrites.
        """
        needs = self._needs
        pages = -(-step.contexts // needs.block_size)
        last = step.contexts - (pages - 1) * needs.block_size
        arrays = [offsets(step.query_lens), offsets(pages), last]
        query_starts, page_starts, last_lens = to_device(arrays, _HOST)
        self._planned.synchronize()
        layout = (query_starts, page_starts, _blocks_in_order(step, pages), last_lens)
        self._wrapper.plan(*layout, *self._heads, needs.block_size, causal=True, **self._common)
        self._planned.record()
        return step

    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: PagedStep,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._wrapper.run(qkv.queries.contiguous(), (cache.keys, cache.values))

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> None:
        starts = on_device(offsets(step.query_lens), _HOST)
        self._planned.synchronize()
        self._wrapper.plan(starts, starts, *self._heads, causal=False, **self._common)
        self._planned.record()

    def attend_packed(self, qkv: QKV, plan: None) -> torch.Tensor:
        return self._wrapper.run(*(part.contiguous() for part in qkv))


def _blocks_in_order(step: PagedStep, pages: IntArray) -> torch.Tensor:
    """Block ids of all contexts, one row after another: int32[sum(pages)]."""
    rows = np.repeat(np.arange(len(pages)), pages)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(pages) - pages, pages)
    on_device = to_device([rows, columns], step.block_tables.device)
    return step.block_tables[step.slots.index_select(0, on_device[0]), on_device[1]]
