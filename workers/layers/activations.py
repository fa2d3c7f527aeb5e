"""Activation functions by transformers' names, and which of them the fused kernels know."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")


def _relu2(rows: torch.Tensor) -> torch.Tensor:
    """Squares of what is above 0 (So et al. 2021, arXiv:2109.08668)."""
    return F.relu(rows).square_()


ACTIVATIONS: dict[ActivationName, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "relu2": _relu2,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}

FUSED: dict[Activation, FusedActivation] = {
    F.silu: "silu",
    F.gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
}
