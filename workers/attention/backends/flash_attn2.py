"""FlashAttention 2: Ampere and later, from source; its pages are multiples of 256 tokens."""

import torch
import torch.nn.functional as F

from workers.attention.backends.flash_attn import Chunks, FlashAttentionBackend, Texts
from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache, Package


class FlashAttention2Backend(FlashAttentionBackend):
    """`flash_attn`, whose result is copied to `out`."""

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
        page_multiple=256,
        compute_majors=(8, 9, 10, 12),
        requires=Package("flash-attn", "pip install 'flash-attn>=2.6'"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        self._window_size = (-1, -1) if self._reach is None else (self._reach, self._reach)
        self._attend = imported("flash_attn", "flash_attn_varlen_func")

    def _attend_chunks(
        self, queries: torch.Tensor, cache: LayerCache, rows: Chunks, out: torch.Tensor
    ) -> None:
        # This generation takes context lengths as cumulative sums.
        context_ends = rows.context_lens.cumsum(0, dtype=torch.int32)
        attended = self._attend(
            queries,
            cache.keys,
            cache.values,
            cu_seqlens_q=rows.query_starts,
            cu_seqlens_k=F.pad(context_ends, (1, 0)),
            max_seqlen_q=rows.longest_query,
            max_seqlen_k=rows.longest_context,
            softmax_scale=self._scale,
            window_size=self._window_size,
            softcap=self._softcap or 0.0,
            causal=True,
            block_table=rows.page_table,
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
        attended = self._attend(
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
