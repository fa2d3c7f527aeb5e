"""Lookup tables."""

import torch
import torch.nn.functional as F

from workers.layers.layer import Layer
from workers.layers.placement import Placement


class Embedding(Layer):
    """Rows of a table by index: int64[N] -> [N, size]. `weight` is [count, size].

    Index 0 is row `first`; the rows before it are loaded, but never used.
    """

    weight: torch.Tensor

    def __init__(
        self, name: str, count: int, size: int, placement: Placement, first: int = 0
    ) -> None:
        self._name = name
        self._kernels = placement.kernels
        self.weight = placement.empty(count, size)
        self._table = self.weight[first:]

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None:
            return self._kernels.embedding(ids, self._table)
        return F.embedding(ids, self._table)

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self.weight}
