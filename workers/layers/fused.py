"""What fused kernels offer to the layers of a stage on CUDA."""

from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch


class Norm(NamedTuple):
    """RMSNorm of a product's input: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


class FusedKernels(Protocol):
    """`workers.kernels.layers`: rows are [N, size], of one dtype."""

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * w"""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[N, 2 F] -> silu(gate) * up, [N, F]"""
        ...

    def fuses_gate(self, rows: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether `gated_linear` can multiply these, and beats the library's product followed by
        `silu_mul`."""
        ...

    def gated_linear(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[N, in] by [2 F, in] -> silu(gate) * up, [N, F]"""
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
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
        gated: bool = False,
    ) -> torch.Tensor:
        """A product with what stands around it (see `workers.kernels.skinny_linear`)."""
        ...


def fused_kernels(device: torch.device) -> FusedKernels | None:
    """The kernels of a CUDA device, None elsewhere: Triton is not there on every machine."""
    if device.type != "cuda":
        return None
    return cast(FusedKernels, import_module("workers.kernels.layers"))
