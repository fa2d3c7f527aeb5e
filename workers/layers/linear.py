"""Layers with a matrix: lookup tables, and linear layers, whose weight holds one or several layers
of a checkpoint, with the activation functions and gates that follow them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation, FusedKernels
from workers.layers import onednn
from workers.layers.layer import Layer, Placement
from workers.layers.norm import RMSNorm

MIN_CPU_ROWS = 4
"""With fewer rows, MKL multiplies by an unpacked weight with another kernel, which rounds
differently (with several threads it may do so up to 9 rows)."""

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")

_ACTIVATIONS: dict[ActivationName, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}

_FUSED: dict[Activation, FusedActivation] = {
    F.silu: "silu",
    F.gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
}


def activation(name: ActivationName) -> Activation:
    """The function that a checkpoint's `hidden_act` calls `name`."""
    return _ACTIVATIONS[name]


def fused_activation(function: Activation) -> FusedActivation | None:
    """The name of `function` in kernels; None if they do not have it."""
    return _FUSED.get(function)


def gated(function: Activation, gate_up: torch.Tensor) -> torch.Tensor:
    """f(gate) * up: [N, 2 F], the gate first, -> [N, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return function(gate).mul_(up)


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

    def _skinny_kernels(self, rows: torch.Tensor, *, normed: bool) -> FusedKernels | None:
        kernels = self._kernels
        if kernels is None:
            return None
        return kernels if kernels.prefers(len(rows), normed=normed) else None

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return onednn.linear(rows, self._weight, self._bias)
        return F.linear(rows, self._weight, self._bias)


class GatedLinear(Linear):
    """f(x W_gate^T) * (x W_up^T) (Shazeer 2020, arXiv:2002.05202)."""

    _product: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(
        self,
        in_features: int,
        members: dict[str, int],
        function: Activation,
        placement: Placement,
        *,
        bias: bool,
    ) -> None:
        """`members` are the checkpoint's gate and up layers, or one that is both, the gate first
        (name -> output features)."""
        super().__init__(in_features, members, placement, bias=bias)
        self._function = function
        self._fused: FusedActivation | None = fused_activation(function)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, half of the output features]; `norm` is applied to the rows
        first."""
        if self._product is None:
            return gated(self._function, super().__call__(rows, norm))
        if (kernels := self._skinny_kernels(rows, normed=norm is not None)) is not None:
            return kernels.skinny_linear(
                rows,
                self._weight,
                bias=self._bias,
                norm=None if norm is None else norm.parameters,
                gate=self._fused,
            )
        return self._product(rows if norm is None else norm(rows))

    def pack(self) -> None:
        super().pack()
        if self._kernels is not None and (function := self._fused) is not None:
            self._product = self._kernels.gated_product(self._weight, self._bias, function)


def pad_rows(rows: torch.Tensor) -> torch.Tensor:
    """[N, D], on the CPU with zero rows added up to MIN_CPU_ROWS."""
    missing = MIN_CPU_ROWS - rows.shape[0]
    if missing <= 0 or rows.device.type != "cpu":
        return rows
    return F.pad(rows, (0, 0, 0, missing))


class Embedding(Layer):
    """Rows of a table by index, times `scale` as rounded to the table's dtype: int64[N] -> [N,
    size]. `weight` is [count, size].

    Index 0 is row `first`; the rows before it are loaded, but never used.
    """

    weight: torch.Tensor

    def __init__(
        self,
        name: str,
        count: int,
        size: int,
        placement: Placement,
        first: int = 0,
        scale: float = 1.0,
    ) -> None:
        self._name = name
        self._kernels = placement.kernels
        self.weight = placement.empty(count, size)
        self._table = self.weight[first:]
        self._scale: float = torch.tensor(scale, dtype=placement.dtype).item()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None:
            return self._kernels.embedding(ids, self._table, self._scale)
        rows = F.embedding(ids, self._table)
        return rows if self._scale == 1 else rows.mul_(self._scale)

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self.weight}
