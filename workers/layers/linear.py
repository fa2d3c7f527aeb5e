"""Layers with a matrix: lookup tables, and linear layers with their activations and gates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation
from workers.layers.layer import Layer, Placement
from workers.layers.norm import RMSNorm

MIN_CPU_ROWS = 4
"""The fewest rows of a product on the CPU. With fewer, MKL has another kernel for unpacked weights,
which rounds differently (with several threads perhaps up to 9 rows)."""

_onednn: Any = torch.ops.mkldnn
"""Products with a weight that is packed once, on the CPU: operators without a public name, which
torch's own compiler emits for a frozen linear layer.

For 4 to 512 rows on an AMD EPYC with AVX-512 they take 0.4 of F.linear's time in float32 (MKL), 0.7
to 0.95 in bfloat16. A row's result is bitwise the same beside any others, with any number of
threads.
"""

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[ActivationName, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}

FUSED: dict[Activation, FusedActivation] = {
    F.silu: "silu",
    F.gelu: "gelu",
    _gelu_tanh: "gelu_tanh",
}


def _can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN can multiply by this weight on this machine without emulation."""
    if weight.device.type != "cpu" or not hasattr(_onednn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(_onednn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return weight.dtype == torch.float32


class Linear(Layer):
    """y = x W^T + b, with the checkpoint layers `members` (name -> output features) stacked in W.

    A layer that stores its weight differently (quantised, sharded) has the same operations.
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
        """[N, in_features] -> [N, out_features], with `norm` applied to the rows first."""
        # Without anything else to fuse, the library adds a bias too, and costs less to launch.
        alone = norm is None and self._bias is not None
        if not alone and (product := self._skinny(rows, norm)) is not None:
            return product
        return self._multiply(rows if norm is None else norm(rows))

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out_features], which may be overwritten, plus the product."""
        if (summed := self._skinny(rows, residual=residual)) is not None:
            return summed
        if rows.is_cuda and self._bias is None:
            return residual.addmm_(rows, self._weight.t())
        return residual + self._multiply(rows)

    def weights(self) -> dict[str, torch.Tensor]:
        """Each member's rows of the weight and bias."""
        kinds = {"weight": self._weight} | ({} if self._bias is None else {"bias": self._bias})
        sizes = [*self._members.values()]
        return {
            f"{name}.{kind}": part
            for kind, whole in kinds.items()
            for name, part in zip(self._members, torch.split(whole, sizes), strict=True)
        }

    def pack(self) -> None:
        if _can_pack(self._weight):
            self._weight = _onednn._reorder_linear_weight(self._weight, None)  # noqa: SLF001
            self._packed = True

    def _skinny(
        self, rows: torch.Tensor, norm: RMSNorm | None = None, **fused: Any
    ) -> torch.Tensor | None:
        """The product by the kernel for few rows, with `fused` arguments, if it is worth it."""
        kernels = self._kernels
        if kernels is None or not kernels.prefers(len(rows), normed=norm is not None):
            return None
        parameters = None if norm is None else norm.parameters
        return kernels.skinny_linear(rows, self._weight, bias=self._bias, norm=parameters, **fused)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return _onednn._linear_pointwise(  # noqa: SLF001
                rows, self._weight, self._bias, "none", [], ""
            )
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
        self._fused: FusedActivation | None = FUSED.get(function)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, half of the output features], with `norm` applied first."""
        if self._product is None:
            gate, up = super().__call__(rows, norm).chunk(2, dim=-1)
            return self._function(gate).mul_(up)
        if (product := self._skinny(rows, norm, gate=self._fused)) is not None:
            return product
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
    """Rows of a table by index, int64[N] -> [N, size], times `scale` as rounded to its dtype.
    `weight` is [count, size]. Index 0 is row `first`; the rows before it are never used."""

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
