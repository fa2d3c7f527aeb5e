"""Normalisation layers."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from workers.kernels.linear.fused import Norm
from workers.layers.layer import Layer, Placement


class RMSNorm(Layer):
    """x / rms(x) * w over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467).

    With `unit_offset`, as in Gemma, checkpoints hold w - 1, and w is kept in float32: in a narrower
    type the sum would be rounded.
    """

    def __init__(
        self, name: str, size: int, eps: float, placement: Placement, *, unit_offset: bool = False
    ) -> None:
        self._name, self._unit_offset = name, unit_offset
        self._kernels = placement.kernels
        dtype = torch.float32 if unit_offset else placement.dtype
        self.parameters = Norm(placement.empty(size, dtype=dtype), eps)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None:
            return self._kernels.rms_norm(rows, *self.parameters)
        return rms_norm(rows, *self.parameters)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual`, which may be overwritten, plus the normalised rows [N, size]."""
        if self._kernels is not None:
            return self._kernels.rms_norm(rows, *self.parameters, residual)
        return residual + self(rows)

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self.parameters.weight}

    def adjust(self) -> None:
        if self._unit_offset:
            self.parameters.weight.add_(1)


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * w over the last dimension of rows [..., size], without fused kernels. Computed
    in the weight's dtype, and rounded once to that of the rows."""
    wide = rows.to(weight.dtype)
    return F.rms_norm(wide, weight.shape, weight, eps).to(rows.dtype)


class QKNorm(NamedTuple):
    """Weights and epsilon of the RMSNorms of queries and keys: [D] for each attention head by
    itself, [H * D] for all heads together. Applied before these are rotated (Henry et al. 2020,
    arXiv:2010.04245, with RMSNorm), or to what was `rotated`. With `values` each of their heads is
    normalised, too, without a weight."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float
    rotated: bool = False
    values: bool = False


class LayerNorm(Layer):
    """(x - mean(x)) / std(x) * w + b over the last dimension (Ba et al. 2016, arXiv:1607.06450).
    With `unit_offset` checkpoints hold w - 1, and the sum is rounded."""

    def __init__(
        self,
        name: str,
        size: int,
        eps: float,
        placement: Placement,
        *,
        bias: bool = True,
        unit_offset: bool = False,
    ) -> None:
        self._name, self._shape, self._eps, self._unit_offset = name, (size,), eps, unit_offset
        self._kernels = placement.kernels
        self._weight = placement.empty(size)
        self._bias = placement.empty(size) if bias else None

    def __call__(self, rows: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[N, size]: the rows, or residual + rows, normalised."""
        parameters = self._weight, self._bias, self._eps
        if self._kernels is not None:
            return self._kernels.layer_norm(rows, *parameters, residual=residual)
        summed = rows if residual is None else residual + rows
        return F.layer_norm(summed, self._shape, *parameters)

    def weights(self) -> dict[str, torch.Tensor]:
        weights = {f"{self._name}.weight": self._weight}
        if self._bias is not None:
            weights[f"{self._name}.bias"] = self._bias
        return weights

    def adjust(self) -> None:
        if self._unit_offset:
            self._weight.add_(1)
