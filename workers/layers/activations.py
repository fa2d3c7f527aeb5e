"""Activation functions by transformers' names, and which of them the fused kernels know."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from workers.contract.experts import Clamp
from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation, FusedGate

Activation = Callable[[torch.Tensor], torch.Tensor]
Gate = Activation | Clamp
"""What a gated layer makes of its two halves."""

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


def gated(gate: Gate, outputs: torch.Tensor) -> torch.Tensor:
    """[N, 2 F], first those of the gate -> [N, F]."""
    first, up = outputs.chunk(2, dim=-1)
    if not isinstance(gate, Clamp):
        return gate(first).mul_(up)
    first, up = first.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
    return first.mul(torch.sigmoid(gate.alpha * first)).mul_(up.add_(1))


def fused_gate(gate: Gate | None) -> FusedGate | None:
    """The gate as the kernel of experts knows it. None if it does not."""
    if isinstance(gate, Clamp):
        return FusedGate("clamped", gate.alpha, gate.limit)
    function = None if gate is None else FUSED.get(gate)
    return None if function is None else FusedGate(function)


FUSED: dict[Gate, FusedActivation] = {
    F.silu: "silu",
    F.gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
}
