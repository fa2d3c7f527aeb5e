"""Weights in the type that is computed with."""

from typing import Any

import torch
import torch.nn.functional as F

from workers.kernels.linear.fused import FusedKernels
from workers.layers.activations import ACTIVATIONS, FUSED, Activation, Gate, gated
from workers.layers.layer import Placement
from workers.layers.linear_method import Filled, LinearShape
from workers.layers.norm import RMSNorm

_onednn: Any = torch.ops.mkldnn
"""Products with a weight that is packed once, on the CPU: operators without a public name, which
torch's own compiler emits for a frozen linear layer.

For 4 to 512 rows on an AMD EPYC with AVX-512 they take 0.4 of F.linear's time in float32 (MKL), 0.7
to 0.95 in bfloat16. A row's result is bitwise the same beside any others, with any number of
threads.
"""

_POST_OPERATIONS: dict[Gate | None, tuple[str, str]] = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["tanh"]: ("tanh", ""),
}
"""What oneDNN computes of a product before it is written, and by which algorithm."""

_GELU: Any = torch.ops.aten._addmm_activation  # noqa: SLF001
"""Bias and GELU at the end of cuBLAS' product, on CUDA: its approximation by tanh, of sums that are
not rounded yet.

In bfloat16 and float16 that is nearer to GELU than GELU itself of rounded sums: with a root mean
square of 1.63e-3 in place of 2.37e-3 for BERT base's layers in bfloat16.
"""


def _ends_in_gelu(weight: torch.Tensor, bias: torch.Tensor | None, function: Activation) -> bool:
    named = FUSED.get(function) in ("gelu", "gelu_tanh")
    return named and bias is not None and weight.is_cuda and weight.itemsize == 2


def _can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN can multiply by this weight on this machine without emulation."""
    if weight.device.type != "cpu" or not hasattr(_onednn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(_onednn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return weight.dtype == torch.float32


class DenseMethod:
    """A weight [out_features, in_features] and a bias, whose rows are the members'."""

    def __init__(
        self, shape: LinearShape, placement: Placement, tied: torch.Tensor | None = None
    ) -> None:
        """`tied` is another layer's weight [out_features, in_features] to share."""
        self._shape, self._kernels, rows = shape, placement.kernels, shape.out_features
        self._weight = placement.empty(rows, shape.in_features) if tied is None else tied
        self._bias = placement.empty(rows) if shape.bias else None

    def weights(self) -> dict[str, torch.Tensor]:
        parts = {"weight": self._weight} | ({} if self._bias is None else {"bias": self._bias})
        sizes = [*self._shape.members.values()]
        return self._shape.named(
            **{kind: torch.split(whole, sizes) for kind, whole in parts.items()}
        )

    def added_bytes(self, fp8_item_bytes: int) -> int:
        return 0

    def pack(self) -> "DenseProduct":
        return DenseProduct(self._weight, self._bias, self._kernels, self._shape)

    def filled(self) -> Filled:
        return Filled(self._weight, self._bias)


class DenseProduct:
    """y = x W^T + b, f(y) with a function, or f(x W_gate^T + b_gate) * (x W_up^T + b_up) with a
    gate."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kernels: FusedKernels | None,
        shape: LinearShape,
    ) -> None:
        self._weight, self._bias, self._kernels = weight, bias, kernels
        self._gate, self._function = gate, function = shape.gate, shape.function
        self._packed = _can_pack(weight)
        if self._packed:
            self._weight = _onednn._reorder_linear_weight(weight, None)  # noqa: SLF001
        self._post = _POST_OPERATIONS.get(function) if self._packed else None
        self._ends_in_gelu = function is not None and _ends_in_gelu(weight, bias, function)
        self._fused = None if kernels is None or gate is None else FUSED.get(gate)
        if kernels is not None and self._fused is not None:
            self._gated = kernels.gated_product(weight, bias, self._fused)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        if self._ends_in_gelu and len(rows) > 1:
            rows = rows if norm is None else norm(rows)
            return _GELU(self._bias, rows, self._weight.t(), use_gelu=True)
        if self._gate is None:
            product, function = self._product(rows, norm), self._function
            return product if function is None or self._post else function(product)
        if self._fused is None:
            return gated(self._gate, self._product(rows, norm))
        if (product := self._skinny(rows, norm, gate=self._fused)) is not None:
            return product
        return self._gated(rows if norm is None else norm(rows))

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if (summed := self._skinny(rows, residual=residual)) is not None:
            return summed
        if rows.is_cuda and self._bias is None:
            return residual.addmm_(rows, self._weight.t())
        return residual + self._multiply(rows)

    def _product(self, rows: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        """All outputs, a gate's among them."""
        # Without anything else to fuse, the library adds a bias too, and costs less to launch. A
        # lone row it divides between two kernels.
        alone = norm is None and self._bias is not None and len(rows) > 1
        if not alone and (product := self._skinny(rows, norm)) is not None:
            return product
        return self._multiply(rows if norm is None else norm(rows))

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
            name, algorithm = self._post or ("none", "")
            return _onednn._linear_pointwise(  # noqa: SLF001
                rows, self._weight, self._bias, name, [], algorithm
            )
        return F.linear(rows, self._weight, self._bias)
