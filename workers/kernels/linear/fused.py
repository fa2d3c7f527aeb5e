"""The fused kernels that layers use on CUDA, to be named without Triton."""

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from workers.kernels.linear.fused_kernels import FusedKernels

FusedActivation = Literal["silu", "gelu", "gelu_tanh"]
"""The activation functions that kernels can compute. `gelu_tanh` is GELU's approximation."""


class Norm(NamedTuple):
    """An RMSNorm before a product: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


def fused_kernels(device: torch.device) -> "FusedKernels | None":
    """The kernels of a CUDA device. None elsewhere, where Triton may not be installed."""
    if device.type != "cuda":
        return None
    from workers.kernels.linear.fused_kernels import FusedKernels  # noqa: PLC0415

    return FusedKernels()
