"""FlashAttention 4: CuTe kernels for Hopper and Blackwell, compiled at first use."""

import torch

from workers.attention.backends.flash_attn import Chunks, FlashAttentionBackend, Texts
from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache, Package


class FlashAttention4Backend(FlashAttentionBackend):
    """`flash_attn.cute`, by the function under its public one.

    The public `flash_attn_varlen_func` is an autograd function, which costs CPU time at every
    launch, and cannot write into a given output. No maximum length is passed: it would only select
    one of two variants of the same kernel, each of which takes seconds to compile.

    If a page is exactly one key tile (128 tokens for attention heads of size 128), whole pages are
    loaded: values after the end of a row's context in its last page are masked but must be finite.
    """

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        bidirectional_windows=True,
        softcap=True,
        graph_safe=True,
        chunks_graph_safe=True,
        prefix_groups=True,
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16),
        head_dims=range(16, 257, 16),
        compute_majors=(9, 10, 11),
        requires=Package("flash-attn-4", "pip install 'flash-attn-4[cu13]>=4.0.0b36'"),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        self._attend = imported("flash_attn.cute.interface", "_flash_attn_fwd")

    def _attend_chunks(
        self, queries: torch.Tensor, cache: LayerCache, rows: Chunks, out: torch.Tensor
    ) -> None:
        self._attend(
            queries,
            cache.keys,
            cache.values,
            cu_seqlens_q=rows.query_starts,
            seqused_k=rows.context_lens,
            page_table=rows.page_table,
            softmax_scale=self._scale,
            causal=True,
            softcap=self._softcap,
            window_size_left=self._reach,
            out=out,
        )

    def _attend_texts(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Texts,
        out: torch.Tensor,
    ) -> None:
        self._attend(
            queries,
            keys,
            values,
            cu_seqlens_q=rows.starts,
            cu_seqlens_k=rows.starts,
            softmax_scale=self._scale,
            softcap=self._softcap,
            window_size_left=self._reach,
            window_size_right=self._reach,
            out=out,
        )
