"""Disentangled attention: what a layer's scores get by the distance of the two tokens."""

from typing import NamedTuple

import torch


class DistanceVectors(NamedTuple):
    """A layer's vectors of distances, in B buckets (He et al. 2020, arXiv:2006.03654).

    keys     [H, B, D], with which queries are multiplied
    queries  [H, B, D], with which keys are multiplied
    buckets  int64[2 L - 1]: at L - 1 + q - k that of query q and key k. No row is longer than L.
    """

    keys: torch.Tensor
    queries: torch.Tensor
    buckets: torch.Tensor

    def scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Scores of all tokens of texts, [..., H, T, D] each -> [..., H, T, T], not scaled."""
        length, zero = queries.shape[-2], len(self.buckets) // 2
        window = self.buckets[zero + 1 - length : zero + length]
        which = window.unfold(0, length, 1).flip(1)  # [query, key]
        by_query = queries @ self.keys.transpose(-1, -2)
        by_key = keys @ self.queries.transpose(-1, -2)
        shape = (*by_query.shape[:-1], length)
        found = by_key.gather(-1, which.t().expand(shape)).transpose(-1, -2)
        return by_query.gather(-1, which.expand(shape)) + found
