"""The fused kernels that layers use on CUDA, to be named without Triton."""

from functools import partial
from typing import Literal, NamedTuple

import torch

from workers.device.choices import Choices

FusedActivation = Literal["silu", "gelu", "gelu_tanh"]
"""`gelu_tanh` is GELU's approximation."""


class Norm(NamedTuple):
    """An RMSNorm before a product: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


class FusedKernels:
    """Functions of rows [N, size], of one dtype, which import Triton.

    gated_product  by the fastest implementation, one of the `choices`
    prefers        whether `skinny_linear` beats the library's product for a number of rows, with or
                   without a norm before it
    """

    def __init__(self, choices: Choices) -> None:
        from workers.kernels.linear import gated_product, rowwise, skinny_linear  # noqa: PLC0415

        self.embedding = rowwise.embedding
        self.rms_norm, self.layer_norm = rowwise.rms_norm, rowwise.layer_norm
        self.gated_product = partial(gated_product.GatedProduct, choices=choices)
        self.prefers, self.skinny_linear = skinny_linear.prefers, skinny_linear.linear


def fused_kernels(device: torch.device, choices: Choices) -> FusedKernels | None:
    """The kernels of a CUDA device. None elsewhere, where Triton may not be installed."""
    return FusedKernels(choices) if device.type == "cuda" else None
