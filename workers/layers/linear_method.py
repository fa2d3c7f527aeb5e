"""How the weights of a linear layer are kept, and how they are applied: what every way offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from workers.kernels.linear.fused import Fp8Weight, Mxfp4Weight
from workers.layers.activations import Activation, Gate
from workers.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer of the checkpoint's layers `members` (name -> output features), stacked.

    With a `gate`, the first half of the outputs goes through that function and is multiplied by the
    second (Shazeer 2020, arXiv:2002.05202). Otherwise all may go through a `function`. A checkpoint
    may hold weights `transposed`: by inputs.
    """

    in_features: int
    members: dict[str, int]
    bias: bool
    gate: Gate | None = None
    function: Activation | None = None
    transposed: bool = False

    @property
    def out_features(self) -> int:
        """Rows of the weight, a gate's among them."""
        return sum(self.members.values())

    def named(self, **parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """`parts`, each with a tensor for each member, by the names in a checkpoint."""
        return {
            f"{member}.{kind}": own.t() if self.transposed and kind == "weight" else own
            for kind, tensors in parts.items()
            for member, own in zip(self.members, tensors, strict=True)
        }


class Product(Protocol):
    """A layer's filled weights, in the layout that is read fastest."""

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """[N, in_features] -> [N, out_features], with a gate half as many, through any function.
        `norm` is applied to the rows first."""
        ...

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out_features], which may be overwritten, plus the product of a layer
        without a gate or function."""
        ...


class Groups(NamedTuple):
    """Pairs of a token and one of its K experts, by experts, then by tokens.

    order   int64[M] (on CUDA int32): pair p is token p // K
    ends    int32[E], where each expert's pairs end
    active  K
    """

    order: torch.Tensor
    ends: torch.Tensor
    active: int


class GroupedProduct(Protocol):
    """Filled weights of experts, each of which multiplies its pairs' rows."""

    def of_tokens(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        """The tokens' rows [N, in_features] -> [M, out_features], in the groups' order."""
        ...

    def of_pairs(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Rows [M, in_features] in the groups' order -> [M, out_features] in that of pairs."""
        ...


Weight = torch.Tensor | Fp8Weight | Mxfp4Weight


class Filled(NamedTuple):
    """A layer's weight [out, in], as it is kept, and its bias [out]."""

    weight: Weight
    bias: torch.Tensor | None


class Method(Protocol):
    """A layer's weights while they are filled."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors to fill, by their names in a checkpoint."""
        ...

    def added_bytes(self, fp8_item_bytes: int) -> int:
        """Bytes that `pack` adds where a weight in FP8 takes so many of them, scales aside."""
        ...

    def pack(self) -> Product: ...

    def filled(self) -> Filled:
        """The weights of all members together, once they are filled."""
        ...
