"""The device and element type of a model's weights."""

from dataclasses import dataclass

import torch

from workers.layers.fused import FusedKernels, fused_kernels


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and element type of a stage's weights."""

    device: torch.device
    dtype: torch.dtype

    def empty(self, *shape: int) -> torch.Tensor:
        """An uninitialised weight of `shape`."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    @property
    def kernels(self) -> FusedKernels | None:
        """The fused kernels of this device; None if there are none."""
        return fused_kernels(self.device)
