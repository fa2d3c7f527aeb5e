"""Linear layers with a bias and an activation function after it."""

from collections.abc import Callable

import torch

from workers.layers.activation import Activation, fused_activation
from workers.layers.linear import Linear
from workers.layers.placement import Placement


class ActivatedLinear(Linear):
    """f(x W^T + b)"""

    _product: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(
        self,
        in_features: int,
        name: str,
        out_features: int,
        function: Activation,
        placement: Placement,
    ) -> None:
        super().__init__(in_features, {name: out_features}, placement, bias=True)
        self._function = function

    def activated(self, rows: torch.Tensor) -> torch.Tensor:
        """[N, in_features] -> [N, out_features]"""
        if self._product is None:
            return self._function(self(rows))
        return self._product(rows)

    def pack(self) -> None:
        super().pack()
        fused, bias = fused_activation(self._function), self._bias
        if self._kernels is not None and fused is not None and bias is not None:
            self._product = self._kernels.activated_product(self._weight, bias, fused)
