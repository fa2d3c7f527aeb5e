"""FlashAttention 3: Hopper only, built from source."""

import torch

from workers.attention.backends.flash_attn import Chunks, FlashAttentionBackend, Texts
from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache, Package


class FlashAttention3Backend(FlashAttentionBackend):
    """`flash_attn_interface`: pages of any size; its result is copied to `out`."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        bidirectional_windows=True,
        softcap=True,
        graph_safe=True,
        prefix_groups=True,
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16),
        head_dims=range(8, 257, 8),
        compute_majors=(9,),
        requires=Package("flash-attn-3", "built from the folder hopper of FlashAttention's source"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        self._window_size = (-1, -1) if self._reach is None else (self._reach, self._reach)
        self._attend_cached = imported("flash_attn_interface", "flash_attn_with_kvcache")
        self._attend_ragged = imported("flash_attn_interface", "flash_attn_varlen_func")

    def _attend_chunks(
        self, queries: torch.Tensor, cache: LayerCache, rows: Chunks, out: torch.Tensor
    ) -> None:
        attended = self._attend_cached(
            queries,
            cache.keys,
            cache.values,
            cache_seqlens=rows.context_lens,
            page_table=rows.page_table,
            cu_seqlens_q=rows.query_starts,
            max_seqlen_q=rows.longest_query,
            softmax_scale=self._scale,
            window_size=self._window_size,
            softcap=self._softcap or 0.0,
            causal=True,
        )
        out[rows.first :] = attended[rows.first :]

    def _attend_texts(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Texts,
        out: torch.Tensor,
    ) -> None:
        attended = self._attend_ragged(
            queries,
            keys,
            values,
            cu_seqlens_q=rows.starts,
            cu_seqlens_k=rows.starts,
            max_seqlen_q=rows.longest,
            max_seqlen_k=rows.longest,
            softmax_scale=self._scale,
            window_size=self._window_size,
            softcap=self._softcap or 0.0,
        )
        out.copy_(attended)
