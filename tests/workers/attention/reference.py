"""Attention by its definition, in float64: what every backend is compared with."""

import torch

from tests.workers.attention_problems import Problem
from workers.contract.model_config import AttentionKind


def dense_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kind: AttentionKind,
    position_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Queries [Q, H, D], the last of the K tokens of keys and values [K, Hkv, D] -> [Q, H, D].

    position_bias [H, 2 L - 1] has at L - 1 the number for a distance of 0, and behind it those for
    keys behind the query.
    """
    group = queries.shape[1] // keys.shape[1]
    wide_keys, wide_values = (
        part.double().repeat_interleave(group, dim=1) for part in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", queries.double(), wide_keys) * kind.scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    key, first = torch.arange(len(keys)), len(keys) - len(queries)
    ahead = key - (torch.arange(len(queries)) + first)[:, None]
    if position_bias is not None:
        scores = scores + position_bias.double()[:, ahead + position_bias.shape[1] // 2]
    seen = ahead <= 0 if kind.causal else torch.ones_like(ahead, dtype=torch.bool)
    if kind.window is not None:
        seen &= ahead.abs() < kind.window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, wide_values)


def solution(problem: Problem) -> torch.Tensor:
    """The answer to a paged problem on the CPU, float64[T, H, D]."""
    outputs, start = [], 0
    for (_, count), keys, values in zip(
        problem.rows, problem.row_keys, problem.row_values, strict=True
    ):
        own = problem.queries[start : start + count]
        start += count
        outputs.append(dense_attention(own, keys, values, problem.want.kind))
    return torch.cat(outputs)
