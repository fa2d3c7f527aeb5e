"""A learned bias of attention's scores by distance (Raffel et al. 2019, arXiv:1910.10683, 2.1)."""

import math

import torch

from workers.contract.model_config import PositionBias
from workers.layers.layer import Layer
from workers.layers.placement import Placement


class RelativePositionBias(Layer):
    """`table` [num_heads, 2 * length - 1] has at length - 1 + k - q what is added to the score of
    query q and key k. It is valid once the weight [num_buckets, num_heads] is packed."""

    def __init__(
        self, name: str, bias: PositionBias, num_heads: int, length: int, placement: Placement
    ) -> None:
        """`length` is the most tokens of a text."""
        self._name = name
        self._weight = placement.empty(bias.num_buckets, num_heads)
        self._buckets = buckets_by_distance(bias, length).to(placement.device)
        self.table = placement.empty(num_heads, len(self._buckets))

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self._weight}

    def pack(self) -> None:
        self.table.copy_(self._weight.index_select(0, self._buckets).t())


def buckets_by_distance(bias: PositionBias, length: int) -> torch.Tensor:
    """int64[2 * length - 1]: the bucket of each distance k - q, from 1 - length to length - 1.

    Keys behind the query have the first half of the buckets, keys ahead of it the second. Half of
    each are for single distances, the rest for ranges that grow with the logarithm of the distance.
    Rounded in float32, as transformers does.
    """
    half = bias.num_buckets // 2
    single = half // 2
    distances = torch.arange(1 - length, length)
    away = distances.abs()
    growth = torch.log(away.clamp(min=single).float() / single)
    wide = single + (growth / math.log(bias.max_distance / single) * (half - single)).long()
    buckets = torch.where(away < single, away, wide.clamp(max=half - 1))
    return buckets + half * (distances > 0)
