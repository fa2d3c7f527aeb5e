"""The fused kernels that layers use on CUDA, to be named without Triton."""

from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch

from workers.device.choices import Choices

FusedActivation = Literal["silu", "gelu", "gelu_tanh"]
"""`gelu_tanh` is GELU's approximation."""


class FusedGate(NamedTuple):
    """A gate's function, or "clamped" with the numbers of a `Clamp`."""

    function: FusedActivation | Literal["clamped"]
    alpha: float = 0.0
    limit: float = 0.0


class Norm(NamedTuple):
    """An RMSNorm before a product: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


class Normed(Protocol):
    """An RMSNorm's layer."""

    parameters: Norm


class Fp8Weight(NamedTuple):
    """A linear layer's weight in FP8 (e4m3), and how the rows that it multiplies are quantised.

    values       [out, in]
    scales       float32: [out], or [ceil(out / 128), ceil(in / 128)] of blocks
    input_scale  float32 [], static. Without one each row has a scale of its own, and where the
                 weight has blocks, each 128 inputs of a row
    most_amax    what a number of a row counts at most for its scale
    """

    values: torch.Tensor
    scales: torch.Tensor
    input_scale: torch.Tensor | None = None
    most_amax: float | None = None

    @property
    def in_blocks(self) -> bool:
        return self.scales.dim() == 2


class Mxfp4Weight(NamedTuple):
    """A linear layer's weight in MXFP4. A byte of `blocks` [out, in / 2] has an even input in its
    lower half and the next one in its upper; `scales` [out, in / 32] are exponents plus 127."""

    blocks: torch.Tensor
    scales: torch.Tensor


class FusedKernels:
    """Functions of rows [N, size], of one dtype, which import Triton.

    gated_product  by the fastest implementation, one of the `choices`
    fp8_product    likewise, by a weight in FP8 for which there is no `fp8_obstacle`
    prefers        whether `skinny_linear` beats the library's product for a number of rows, with or
                   without a norm before it
    """

    def __init__(self, choices: Choices) -> None:
        from workers.kernels.linear import (  # noqa: PLC0415
            fp8_product,
            gated_product,
            rowwise,
            skinny_linear,
        )

        self.embedding = rowwise.embedding
        self.rms_norm, self.layer_norm = rowwise.rms_norm, rowwise.layer_norm
        self.gated_product = partial(gated_product.GatedProduct, choices=choices)
        self.fp8_product = partial(fp8_product.Fp8Product, choices=choices)
        self.fp8_obstacle = fp8_product.obstacle
        self.prefers, self.skinny_linear = skinny_linear.prefers, skinny_linear.linear


def fused_kernels(device: torch.device, choices: Choices) -> FusedKernels | None:
    """The kernels of a CUDA device. None elsewhere, where Triton may not be installed."""
    return FusedKernels(choices) if device.type == "cuda" else None
