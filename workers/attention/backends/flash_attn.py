"""FlashAttention over whichever generation is there: 4 first, then 3, then 2.

Source: Dao, FlashAttention-2 (2023); Shah et al., FlashAttention-3 (2024).

Decode rows go to the project's own split-K kernel: FlashAttention gives such a row one block of
threads a KV head, however long its context. Short texts go to its own kernel, too: FlashAttention
gives each a tile. Generations 2 and 3 are untried: they are called as
documented, and have run against stand-ins only.
"""

from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
import torch.nn.functional as F

from workers.attention.backends.triton import PackedPlan, PagedPlan, TritonBackend
from workers.attention.base import QKV, AttentionNeeds, LayerCache
from workers.device.tuning import LONG_TEXTS, LONG_TEXTS_WIDE_HEADS
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class FlashAttention4Backend(TritonBackend):
    """CuTe kernels for Hopper and Blackwell, compiled at first use: `flash_attn.cute`.

    The function under the public `flash_attn_varlen_func` is called: that one, of autograd, costs
    CPU time at every launch, and cannot write into a given output. No maximum length is passed,
    which would only select another variant that takes seconds to compile.

    If a page is exactly one key tile (128 tokens for attention heads of size 128), whole pages are
    loaded. Values behind a context in its last page are masked but must be finite.
    """

    label = "flash_attn4"
    capabilities = replace(
        TritonBackend.capabilities,
        position_bias=False,
        fp8_cache=(False,),
        dtypes=(torch.bfloat16, torch.float16),
        head_dims=range(16, 257, 16),
        compute_majors=(9, 10, 11),
        requires=("flash-attn-4", "pip install 'flash-attn-4[cu13]>=4.0.0b36'"),
    )

    # A chunk's queries fill a tile by themselves: only decode rows gain by sharing.
    _all_rows_share = False

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        # How far a query sees to either side.
        self._reach = None if needs.kind.window is None else needs.kind.window - 1
        self._long_texts = LONG_TEXTS if needs.head_dim <= 64 else LONG_TEXTS_WIDE_HEADS
        self._options: dict[str, Any] = {"softmax_scale": needs.kind.scale} | self._load()

    def _load(self) -> dict[str, Any]:
        """Import the library's functions. Returns arguments of every call."""
        self._attend = resolve_name("flash_attn.cute.interface:_flash_attn_fwd")
        return {"softcap": self._kind.softcap, "window_size_left": self._reach}

    def attend_packed(self, qkv: QKV, plan: PackedPlan) -> torch.Tensor:
        if plan.step.query_lens.mean() < self._long_texts:
            return super().attend_packed(qkv, plan)
        return self._attend_long_texts(qkv, plan.step)

    def _attend_long_texts(self, qkv: QKV, step: PackedStep) -> torch.Tensor:
        out = qkv.queries.new_empty(qkv.queries.shape)
        self._attend(
            *qkv,
            cu_seqlens_q=step.query_starts,
            cu_seqlens_k=step.query_starts,
            window_size_right=self._reach,
            out=out,
            **self._options,
        )
        return out

    def _plan_others(self, step: PagedStep, first: int) -> Any:
        """Arguments of the call for the rows of several queries.

        Where their queries start, int32[R + 1], their contexts' lengths, and block ids for the
        longest of them, int32[R, N].
        """
        width = -(-int(step.contexts[first:].max()) // self._needs.block_size)
        return {
            "cu_seqlens_q": step.query_starts[first:],
            "seqused_k": step.context_lens[first:],
            "page_table": step.block_tables[:, :width].index_select(0, step.slots[first:]),
        }

    def _attend_others(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        paged = queries, cache.keys, cache.values
        self._attend(*paged, causal=True, out=out, **plan.others, **self._options)


class FlashAttention3Backend(FlashAttention4Backend):
    """Hopper only, built from source: `flash_attn_interface`, whose result is copied to `out`."""

    label = "flash_attn3"
    capabilities = replace(
        FlashAttention4Backend.capabilities,
        chunks_graph_safe=False,
        head_dims=range(8, 257, 8),
        compute_majors=(9,),
        requires=("flash-attn-3", "built from the folder hopper of FlashAttention's source"),
    )
    _functions = ("flash_attn_interface", "flash_attn_varlen_func", "flash_attn_with_kvcache")
    """The module, and its functions for texts and for chunks."""

    def _load(self) -> dict[str, Any]:
        module, texts, chunks = self._functions
        self._attend, self._attend_cached = (
            resolve_name(f"{module}:{name}") for name in (texts, chunks)
        )
        # Causal attention ignores the right side.
        side = -1 if self._reach is None else self._reach
        return {"softcap": self._kind.softcap or 0.0, "window_size": (side, side)}

    def _attend_long_texts(self, qkv: QKV, step: PackedStep) -> torch.Tensor:
        longest = int(step.query_lens.max())
        return self._attend(
            *qkv,
            cu_seqlens_q=step.query_starts,
            cu_seqlens_k=step.query_starts,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            **self._options,
        )

    def _plan_others(self, step: PagedStep, first: int) -> dict[str, Any]:
        rows = super()._plan_others(step, first)
        longest = int(step.query_lens[first:].max())
        return rows | {"cache_seqlens": rows.pop("seqused_k"), "max_seqlen_q": longest}

    def _attend_others(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        paged = queries, cache.keys, cache.values
        attended = self._attend_cached(*paged, causal=True, **plan.others, **self._options)
        first = plan.decode_rows  # of one token each
        out[first:] = attended[first:]


class FlashAttention2Backend(FlashAttention3Backend):
    """Ampere and later, from source: `flash_attn`, for pages of multiples of 256 tokens."""

    label = "flash_attn2"
    capabilities = replace(
        FlashAttention3Backend.capabilities,
        page_multiple=256,
        compute_majors=(8, 9, 10, 12),
        requires=("flash-attn", "pip install 'flash-attn>=2.6'"),
    )
    _functions = ("flash_attn", "flash_attn_varlen_func", "flash_attn_varlen_func")

    def _plan_others(self, step: PagedStep, first: int) -> dict[str, Any]:
        rows = super()._plan_others(step, first)
        # This generation takes context lengths as cumulative sums.
        context_ends = rows.pop("cache_seqlens").cumsum(0, dtype=torch.int32)
        return rows | {
            "cu_seqlens_k": F.pad(context_ends, (1, 0)),
            "max_seqlen_k": int(step.contexts[first:].max()),
            "block_table": rows.pop("page_table"),
        }
