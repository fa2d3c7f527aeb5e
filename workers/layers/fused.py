"""The fused kernels that layers use on CUDA, as an interface without Triton."""

from collections.abc import Callable
from importlib import import_module
from typing import Literal, NamedTuple, Protocol, cast

import torch

FusedActivation = Literal["silu", "gelu", "gelu_tanh"]
"""The activation functions that kernels can compute; `gelu_tanh` is GELU's approximation."""


class Norm(NamedTuple):
    """An RMSNorm before a product: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


class FusedKernels(Protocol):
    """`workers.kernels.linear.fused_kernels`: rows are [N, size], of one dtype."""

    def embedding(self, ids: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        """weight[ids] * scale"""
        ...

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * w"""
        ...

    def add_rms_norm(
        self, residual: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """residual + x / rms(x) * w; `residual` is overwritten and returned."""
        ...

    def layer_norm(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        *,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """LayerNorm of rows, or of residual + rows, a new tensor."""
        ...

    def gated_product(
        self, weight: torch.Tensor, bias: torch.Tensor | None, function: FusedActivation
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """[N, in] -> function(gate) * up, [N, F], by a weight [2 F, in] and bias [2 F] whose first
        halves belong to the gate. May measure which implementation is fastest."""
        ...

    def prefers(self, rows: int, *, normed: bool) -> bool:
        """Whether `skinny_linear` beats the library's product for this number of rows, with or
        without a norm before it."""
        ...

    def skinny_linear(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
        gate: FusedActivation | None = None,
    ) -> torch.Tensor:
        """A product with fused operations (see `workers.kernels.linear.skinny_linear`)."""
        ...


def fused_kernels(device: torch.device) -> FusedKernels | None:
    """The kernels of a CUDA device; None elsewhere, where Triton may not be installed."""
    if device.type != "cuda":
        return None
    return cast(FusedKernels, import_module("workers.kernels.linear.fused_kernels"))
