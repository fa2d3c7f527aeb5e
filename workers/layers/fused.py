"""What fused kernels offer to the layers of a stage on CUDA."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch


class Norm(NamedTuple):
    """RMSNorm of a product's input: its weight [in_features] and epsilon."""

    weight: torch.Tensor
    eps: float


class FusedKernels(Protocol):
    """`workers.kernels.linear.fused_kernels`: rows are [N, size], of one dtype."""

    def embedding(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """weight[ids]"""
        ...

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * w"""
        ...

    def gated_product(
        self, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """[N, in] -> silu(gate) * up, [N, F], by a weight [2 F, in] and bias [2 F] of which the
        first halves are the gates'. May measure which way is the fastest."""
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
        """A product with what stands around it (see `workers.kernels.linear.skinny_linear`)."""
        ...


def fused_kernels(device: torch.device) -> FusedKernels | None:
    """The kernels of a CUDA device, None elsewhere: Triton is not there on every machine."""
    if device.type != "cuda":
        return None
    return cast(FusedKernels, import_module("workers.kernels.linear.fused_kernels"))
