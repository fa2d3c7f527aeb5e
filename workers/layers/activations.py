"""Activation functions by transformers' names, and which of them the fused kernels know."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[ActivationName, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
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
