"""The modules of sentence-transformers that turn token states into one vector, as records."""

from collections.abc import Sequence
from typing import Literal

import msgspec

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DenseActivation = Literal["Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid"]


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all `modes` side by side, in their order. Without `include_prompt`, the tokens
    of a prompt before the text are not pooled."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True


class DenseConfig(msgspec.Struct, frozen=True, kw_only=True, tag="dense"):
    """activation(x W^T + b). `path` is the folder of its weights in the checkpoint."""

    path: str
    in_features: int
    out_features: int
    bias: bool = True
    activation: DenseActivation = "Tanh"


class LayerNormConfig(msgspec.Struct, frozen=True, kw_only=True, tag="layer_norm"):
    """A LayerNorm over `size` numbers. `path` is the folder of its weights in the checkpoint."""

    path: str
    size: int


class NormalizeConfig(msgspec.Struct, frozen=True, kw_only=True, tag="normalize"):
    """Scales vectors to length 1."""


VectorModule = DenseConfig | LayerNormConfig | NormalizeConfig
"""A module behind the pooling: from vectors to vectors."""


def vector_size(hidden_size: int, pooling: PoolingConfig, modules: Sequence[VectorModule]) -> int:
    """The numbers of a vector behind `modules`, from token states of `hidden_size` numbers."""
    size = hidden_size * len(pooling.modes)
    for module in modules:
        if isinstance(module, DenseConfig):
            size = module.out_features
    return size
