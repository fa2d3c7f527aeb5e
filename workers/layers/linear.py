"""Layers with a matrix: lookup tables, and linear layers with their activations and gates."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from workers.contract.model_config import ModelConfigError
from workers.layers.activations import Activation, Gate
from workers.layers.dense_method import DenseMethod
from workers.layers.fp8_method import Fp8Method
from workers.layers.grouped_product import grouped_product
from workers.layers.layer import Layer, Placement, Rows
from workers.layers.linear_method import GroupedProduct, Groups, LinearShape, Method, Product
from workers.layers.mxfp4_method import Mxfp4Method
from workers.layers.norm import RMSNorm

MIN_CPU_ROWS = 4
"""The fewest rows of a product on the CPU. With fewer, MKL has another kernel for unpacked weights,
which rounds differently (with several threads perhaps up to 9 rows)."""


class Linear(Layer):
    """The product with the checkpoint layers `members` (name -> output features), stacked. With a
    `gate` these are its layer and what it multiplies, or one that is both, and with a `function`
    it is applied to the product (see `LinearShape`)."""

    _product: Product

    def __init__(
        self,
        in_features: int,
        members: dict[str, int],
        placement: Placement,
        *,
        bias: bool,
        gate: Gate | None = None,
        function: Activation | None = None,
        tied: torch.Tensor | None = None,
        rows: Mapping[str, Rows] | None = None,
    ) -> None:
        """`tied` is another layer's weight [out_features, in_features] to share. The checkpoint's
        `rows` of a member are taken in that order."""
        self._shape = LinearShape(in_features, members, bias, gate, function, placement.transposed)
        self._rows = rows or {}
        self._method = _method(self._shape, placement, tied, self._rows)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """As `Product` has it, once the layer is packed."""
        return self._product(rows, norm)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._product.add_to(residual, rows)

    def weights(self) -> dict[str, torch.Tensor]:
        return self._method.weights()

    def rows(self) -> dict[str, Rows]:
        return {
            name: rows
            for name, weight in self._method.weights().items()
            if (rows := self._rows.get(name.rpartition(".")[0])) is not None
            and weight.shape[:1] == (rows.total,)
        }

    def added_bytes(self, fp8_item_bytes: int) -> int:
        return self._method.added_bytes(fp8_item_bytes)

    def pack(self) -> None:
        self._product = self._method.pack()
        del self._method  # and so what was filled, if the product does not keep it


class ExpertLinear(Linear):
    """Linear layers of experts, all of one shape: `members` are those of the first, then of the
    next (see `GroupedProduct`)."""

    _grouped: GroupedProduct

    def __init__(
        self,
        in_features: int,
        experts: Sequence[dict[str, int]],
        placement: Placement,
        *,
        bias: bool,
        gate: Gate | None = None,
    ) -> None:
        members = {name: size for own in experts for name, size in own.items()}
        super().__init__(in_features, members, placement, bias=bias, gate=gate)
        self._placement, self._count = placement, len(experts)

    def of_tokens(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._grouped.of_tokens(rows, groups)

    def of_pairs(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._grouped.of_pairs(rows, groups)

    def pack(self) -> None:
        filled = self._method.filled()
        self._grouped = grouped_product(filled, self._shape, self._placement, self._count)
        del self._method


def _method(
    shape: LinearShape, placement: Placement, tied: torch.Tensor | None, rows: Mapping[str, Rows]
) -> Method:
    """The way in which the weights of a layer are kept. Raises ModelConfigError if its members
    differ in that, or if `rows` would tear blocks apart."""
    quantization, others = placement.quantization, placement.other_names
    in_fp8 = {
        name: quantization is not None and quantization.keeps(name, *others.get(name, ()))
        for name in shape.members
    }
    if len({*in_fp8.values()}) > 1:
        one, other = sorted(in_fp8, key=in_fp8.__getitem__, reverse=True)[:: len(in_fp8) - 1]
        raise ModelConfigError(
            f"{one} is in FP8 and {other} is not, as the quantization of the checkpoint says: they "
            "are one product here, and must be kept alike"
        )
    if quantization is None or not all(in_fp8.values()):
        return DenseMethod(shape, placement, tied)
    if rows and quantization.weights == "block":
        reason = "has rows in another order: quantization by block is not supported so"
        raise ModelConfigError(f"{next(iter(rows))} {reason}")
    if quantization.in_fp4:
        return Mxfp4Method(shape, placement)
    return Fp8Method(shape, placement, quantization)


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
