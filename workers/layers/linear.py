"""Linear layers whose weight holds one or several layers of a checkpoint."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from workers.layers import onednn
from workers.layers.layer import Layer
from workers.layers.norm import RMSNorm
from workers.layers.placement import Placement

if TYPE_CHECKING:
    from workers.kernels.linear.fused_kernels import FusedKernels

MIN_CPU_ROWS = 4
"""With fewer rows, MKL multiplies by an unpacked weight with another kernel, which rounds
differently (with several threads it may do so up to 9 rows)."""


class Linear(Layer):
    """y = x W^T + b, with the checkpoint layers `members` (name -> output features) stacked in W.

    A layer that stores its weight differently (quantised, sharded) replaces this one with the same
    operations: create, `weights` and `pack` to load, call to apply.
    """

    def __init__(
        self,
        in_features: int,
        members: dict[str, int],
        placement: Placement,
        *,
        bias: bool,
        tied: torch.Tensor | None = None,
    ) -> None:
        """`tied` is another layer's weight [out_features, in_features] to share."""
        self._members = members
        out_features = sum(members.values())
        self._weight = placement.empty(out_features, in_features) if tied is None else tied
        self._bias = placement.empty(out_features) if bias else None
        self._packed = False
        self._kernels = placement.kernels

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, out_features]; `norm` is applied to the rows first."""
        # Without anything else to fuse, the library adds a bias too, and costs less to launch.
        alone = norm is None and self._bias is not None
        kernels = None if alone else self._skinny_kernels(rows, normed=norm is not None)
        if kernels is not None:
            parameters = None if norm is None else norm.parameters
            return kernels.skinny_linear(rows, self._weight, bias=self._bias, norm=parameters)
        return self._multiply(rows if norm is None else norm(rows))

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out_features] plus the product; `residual` may be overwritten."""
        if (kernels := self._skinny_kernels(rows, normed=False)) is not None:
            return kernels.skinny_linear(rows, self._weight, bias=self._bias, residual=residual)
        if rows.is_cuda and self._bias is None:
            return residual.addmm_(rows, self._weight.t())
        return residual + self._multiply(rows)

    def weights(self) -> dict[str, torch.Tensor]:
        """Each member's rows of the weight and bias."""
        tensors: dict[str, torch.Tensor] = {}
        start = 0
        for name, size in self._members.items():
            tensors[f"{name}.weight"] = self._weight[start : start + size]
            if self._bias is not None:
                tensors[f"{name}.bias"] = self._bias[start : start + size]
            start += size
        return tensors

    def pack(self) -> None:
        if onednn.can_pack(self._weight):
            self._weight = onednn.pack(self._weight)
            self._packed = True

    def _skinny_kernels(self, rows: torch.Tensor, *, normed: bool) -> "FusedKernels | None":
        kernels = self._kernels
        if kernels is None:
            return None
        return kernels if kernels.prefers(len(rows), normed=normed) else None

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return onednn.linear(rows, self._weight, self._bias)
        return F.linear(rows, self._weight, self._bias)


def pad_rows(rows: torch.Tensor) -> torch.Tensor:
    """[N, D], on the CPU with zero rows added up to MIN_CPU_ROWS."""
    missing = MIN_CPU_ROWS - rows.shape[0]
    if missing <= 0 or rows.device.type != "cpu":
        return rows
    return F.pad(rows, (0, 0, 0, missing))
