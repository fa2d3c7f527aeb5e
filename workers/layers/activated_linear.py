"""Linear layers with a bias and an activation function after it."""

import torch

from workers.layers.activation import Activation
from workers.layers.linear import Linear
from workers.layers.placement import Placement


class ActivatedLinear(Linear):
    """f(x W^T + b)"""

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
        return self._function(self(rows))
