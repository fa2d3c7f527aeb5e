"""Gated linear layers: gate and up projections as one product."""

from collections.abc import Callable

import torch

from workers.kernels.linear.fused import FusedActivation
from workers.layers.activation import Activation, fused_activation, gated
from workers.layers.linear import Linear
from workers.layers.norm import RMSNorm
from workers.layers.placement import Placement


class GatedLinear(Linear):
    """f(x W_gate^T) * (x W_up^T) (Shazeer 2020, arXiv:2002.05202)."""

    _product: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(
        self,
        in_features: int,
        members: dict[str, int],
        function: Activation,
        placement: Placement,
        *,
        bias: bool,
    ) -> None:
        """`members` are the checkpoint's gate and up layers, or one that is both, the gate first
        (name -> output features)."""
        super().__init__(in_features, members, placement, bias=bias)
        self._function = function
        self._fused: FusedActivation | None = fused_activation(function)

    def activated(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, half of the output features]; `norm` is applied to the rows
        first."""
        if self._product is None:
            return gated(self._function, self(rows, norm))
        if (kernels := self._skinny_kernels(rows, normed=norm is not None)) is not None:
            return kernels.skinny_linear(
                rows,
                self._weight,
                bias=self._bias,
                norm=None if norm is None else norm.parameters,
                gate=self._fused,
            )
        return self._product(rows if norm is None else norm(rows))

    def pack(self) -> None:
        super().pack()
        if self._kernels is not None and (function := self._fused) is not None:
            self._product = self._kernels.gated_product(self._weight, self._bias, function)
