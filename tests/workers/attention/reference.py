"""Attention by its definition, in float64: what every backend and kernel is compared with."""

import torch

from tests.workers.attention_problems import PackedProblem, Problem
from workers.attention.distance_vectors import DistanceVectors
from workers.contract.model_config import AttentionKind


def dense_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kind: AttentionKind,
    position_bias: torch.Tensor | None = None,
    vectors: DistanceVectors | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Queries [Q, H, D], the last of the K tokens of keys and values [K, Hkv, D] -> [Q, H, D].

    position_bias [H, 2 L - 1] has at L - 1 the number for a distance of 0, and behind it those for
    keys behind the query. `sinks` are [H].
    """
    group = queries.shape[1] // keys.shape[1]
    wide_keys, wide_values = (
        part.double().repeat_interleave(group, dim=1) for part in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", queries.double(), wide_keys)
    if vectors is not None:
        places = torch.arange(len(keys), device=keys.device)
        buckets = vectors.buckets[places[:, None] - places + len(vectors.buckets) // 2]
        by_query, by_key = vectors.keys.double()[:, buckets], vectors.queries.double()[:, buckets]
        scores += torch.einsum("qhd,hqkd->hqk", queries.double(), by_query)
        scores += torch.einsum("khd,hqkd->hqk", wide_keys, by_key)
    scores *= kind.scale
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    key = torch.arange(len(keys), device=keys.device)
    ahead = key - key[len(keys) - len(queries) :, None]
    if position_bias is not None:
        scores = scores + position_bias.double()[:, ahead + position_bias.shape[1] // 2]
    seen = ahead <= 0 if kind.causal else torch.ones_like(ahead, dtype=torch.bool)
    if kind.window is not None:
        seen &= ahead.abs() < kind.window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        own = sinks.double()[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, own], dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, wide_values)


def solution(problem: Problem | PackedProblem) -> torch.Tensor:
    kind, bias, vectors, sinks = problem.want.kind, None, None, None
    if isinstance(problem, PackedProblem):
        bias, vectors = problem.bias, problem.vectors
        rows = zip(*(part.split([*problem.lengths]) for part in problem.qkv), strict=True)
    else:
        own, sinks = problem.queries.split([count for _, count in problem.rows]), problem.sinks
        rows = zip(own, problem.row_keys, problem.row_values, strict=True)
    return torch.cat([dense_attention(q, k, v, kind, bias, vectors, sinks) for q, k, v in rows])


def assert_attended(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """`got` is `exact` as far as `dtype` can tell: probabilities are rounded to it too."""
    assert got.dtype == dtype
    bound = 5e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, atol=bound, rtol=0)


def assert_solved(got: torch.Tensor, problem: Problem | PackedProblem) -> None:
    assert_attended(got, solution(problem), problem.want.dtype)
