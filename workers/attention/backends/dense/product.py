"""Attention over dense batches: by torch, or step by step where torch's has no softcap."""

import torch
import torch.nn.functional as F

from workers.contract.model_config import AttentionKind


def attend_dense(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kind: AttentionKind,
    mask: torch.Tensor | None,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Queries [B, H, Q, D] over keys and values [B, H, K, D] -> [B, H, Q, D].

    An additive `mask` broadcasts to [B, H, Q, K]. `is_causal` takes its place where there is no
    softcap.
    """
    if kind.softcap is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=kind.scale
        )
    scores = torch.matmul(queries.float(), keys.float().transpose(-2, -1))
    scores = scores.mul_(kind.scale / kind.softcap).tanh_().mul_(kind.softcap)
    if mask is not None:
        scores.add_(mask)
    return torch.matmul(scores.softmax(dim=-1), values.float()).to(queries.dtype)


def attend_dense_with_lse(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kind: AttentionKind,
    mask: torch.Tensor | None,
    *,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend_dense` on a CPU and without a softcap; also the log-sum-exp of each query's scores,
    float32[B, H, Q]. torch's function for everybody computes it too, but keeps it to itself."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    attended, lse = attend(queries, keys, values, 0.0, is_causal, attn_mask=mask, scale=kind.scale)
    return attended, lse
