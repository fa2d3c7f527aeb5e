"""The device and element type of a model's weights."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from workers.kernels.linear.fused import fused_kernels

if TYPE_CHECKING:
    from workers.kernels.linear.fused_kernels import FusedKernels


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and element type of a stage's weights."""

    device: torch.device
    dtype: torch.dtype

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialised weight of `shape`, of another element type if given."""
        return torch.empty(shape, device=self.device, dtype=dtype or self.dtype)

    @property
    def kernels(self) -> "FusedKernels | None":
        """The fused kernels of this device; None if there are none."""
        return fused_kernels(self.device)
