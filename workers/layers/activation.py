"""Activation functions by the name in a checkpoint's `hidden_act`."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from workers.contract.model_shape import ActivationName
from workers.kernels.linear.fused import FusedActivation

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")

_ACTIVATIONS: dict[ActivationName, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


def activation(name: ActivationName) -> Activation:
    """The function called `name`."""
    return _ACTIVATIONS[name]


def fused_activation(function: Activation) -> FusedActivation | None:
    """The name of `function` in kernels; None if they do not have it."""
    known: dict[Activation, FusedActivation] = {
        F.silu: "silu",
        F.gelu: "gelu",
        _gelu_tanh: "gelu_tanh",
    }
    return known.get(function)


def gated(function: Activation, gate_up: torch.Tensor) -> torch.Tensor:
    """f(gate) * up: [N, 2 F], the gate first, -> [N, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return function(gate).mul_(up)
