"""Lookup tables."""

import torch
import torch.nn.functional as F

from workers.layers.layer import Layer, Placement


class Embedding(Layer):
    """Rows of a table by index, times `scale` as rounded to the table's dtype: int64[N] -> [N,
    size]. `weight` is [count, size].

    Index 0 is row `first`; the rows before it are loaded, but never used.
    """

    weight: torch.Tensor

    def __init__(
        self,
        name: str,
        count: int,
        size: int,
        placement: Placement,
        first: int = 0,
        scale: float = 1.0,
    ) -> None:
        self._name = name
        self._kernels = placement.kernels
        self.weight = placement.empty(count, size)
        self._table = self.weight[first:]
        self._scale: float = torch.tensor(scale, dtype=placement.dtype).item()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None:
            return self._kernels.embedding(ids, self._table, self._scale)
        rows = F.embedding(ids, self._table)
        return rows if self._scale == 1 else rows.mul_(self._scale)

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self.weight}
