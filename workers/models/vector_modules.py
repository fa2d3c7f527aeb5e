"""What follows an embedder's pooling: sentence-transformers' Dense, LayerNorm and Normalize."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from workers.contract.model_config import (
    DenseActivation,
    DenseConfig,
    LayerNormConfig,
    NormalizeConfig,
    VectorModule,
)
from workers.layers.layer import Layer
from workers.layers.linear import Linear
from workers.layers.norm import LayerNorm
from workers.layers.placement import Placement

_LAYER_NORM_EPS = 1e-5
"""torch's default, which the library does not change."""

_ACTIVATIONS: Mapping[DenseActivation, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda rows: rows,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


class Dense(Layer):
    """activation(x W^T + b): [R, in_features] -> [R, out_features]."""

    def __init__(self, config: DenseConfig, placement: Placement) -> None:
        members = {f"{config.path}/linear": config.out_features}
        self._linear = Linear(config.in_features, members, placement, bias=config.bias)
        self._activation = _ACTIVATIONS[config.activation]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._activation(self._linear(rows))


class Normalize(Layer):
    """Rows of length 1, but for zeros: [R, D] -> [R, D]."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.normalize(rows, dim=-1)


class VectorModules(Layer):
    """The modules in order. Weights are called `folder/name`, by their place in the checkpoint."""

    def __init__(self, configs: Sequence[VectorModule], placement: Placement) -> None:
        self._dtype = placement.dtype
        self._layers = [_layer(config, placement) for config in configs]

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """float32[R, D] -> float32[R, E], computed in the model's dtype as the library does."""
        if not self._layers:
            return vectors
        rows = vectors.to(self._dtype)
        for layer in self._layers:
            rows = layer(rows)
        return rows.float()


def _layer(config: VectorModule, placement: Placement) -> Dense | LayerNorm | Normalize:
    match config:
        case DenseConfig():
            return Dense(config, placement)
        case LayerNormConfig():
            return LayerNorm(f"{config.path}/norm", config.size, _LAYER_NORM_EPS, placement)
        case NormalizeConfig():
            return Normalize()
