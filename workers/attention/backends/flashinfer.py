"""Attention by FlashInfer's batch prefill kernels, which take rows of any length."""

from typing import Any, NamedTuple

import numpy as np
import torch

from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache, Package
from workers.device.transfer import to_device
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import IntArray

_WORKSPACE_BYTES = 128 * 2**20
"""FlashInfer's recommendation for the partial results of split contexts."""


class FlashInferPlan(NamedTuple):
    """The KV indices int64[T] of a step's tokens; FlashInfer keeps the rest of the plan."""

    kv_indices: torch.Tensor


class FlashInferBackend:
    """One FlashInfer wrapper, planned for each step; it treats decode rows as one-token prompts.

    Written to the documented interface. The library plans on the host, so a CUDA graph would keep
    the lengths of one step.
    """

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
        requires=Package("flashinfer-python", "pip install flashinfer-python"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs
        self._heads = (needs.num_heads, needs.num_kv_heads, needs.head_dim)
        self._common: dict[str, Any] = {
            "sm_scale": needs.kind.scale,
            "window_left": -1 if needs.kind.window is None else needs.kind.window - 1,
            "logits_soft_cap": needs.kind.softcap,
            "q_data_type": needs.dtype,
            "kv_data_type": needs.dtype,
        }
        kind = "Paged" if needs.paged else "Ragged"
        wrapper = imported("flashinfer", f"BatchPrefillWith{kind}KVCacheWrapper")
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=needs.device)
        self._wrapper = wrapper(workspace, "NHD")
        self._planned = torch.cuda.Event()

    def plan_paged(self, step: PagedStep) -> FlashInferPlan:
        """Also waits until the plan before has been copied from FlashInfer's pinned buffer, which
        this one overwrites. It only has to wait if the host is more than one step ahead."""
        needs = self._needs
        pages = -(-step.contexts // needs.block_size)
        last = step.contexts - (pages - 1) * needs.block_size
        query_starts, page_starts, last_lens = _on_host(
            _starts(step.query_lens), _starts(pages), last
        )
        self._planned.synchronize()
        layout = (query_starts, page_starts, _blocks_in_order(step, pages), last_lens)
        self._wrapper.plan(*layout, *self._heads, needs.block_size, causal=True, **self._common)
        self._planned.record()
        return FlashInferPlan(step.kv_indices)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: FlashInferPlan
    ) -> None:
        cache.write(keys, values, plan.kv_indices)

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: FlashInferPlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended: torch.Tensor = self._wrapper.run(queries.contiguous(), (cache.keys, cache.values))
        return attended

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> None:
        """Like `plan_paged`; FlashInfer keeps the whole plan."""
        (starts,) = _on_host(_starts(step.query_lens))
        self._planned.synchronize()
        self._wrapper.plan(starts, starts, *self._heads, causal=False, **self._common)
        self._planned.record()

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: None
    ) -> torch.Tensor:
        qkv = (queries, keys, values)
        attended: torch.Tensor = self._wrapper.run(*(part.contiguous() for part in qkv))
        return attended


def _starts(lengths: IntArray) -> IntArray:
    """int32[R + 1]: the start of each row, and the end of the last."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _on_host(*arrays: IntArray) -> list[torch.Tensor]:
    return to_device(arrays, torch.device("cpu"))


def _blocks_in_order(step: PagedStep, pages: IntArray) -> torch.Tensor:
    """Block ids of all contexts, one row after another: int32[sum(pages)]."""
    rows = np.repeat(np.arange(len(pages)), pages)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(pages) - pages, pages)
    on_device = to_device([rows, columns], step.block_tables.device)
    return step.block_tables[step.slots.index_select(0, on_device[0]), on_device[1]]
