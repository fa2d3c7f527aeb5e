"""How the weights of a linear layer are kept, and how they are applied: what every way offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from workers.layers.activations import Activation
from workers.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer of the checkpoint's layers `members` (name -> output features), stacked.

    With a `gate`, the first half of the outputs goes through that function and is multiplied by the
    second (Shazeer 2020, arXiv:2002.05202). A checkpoint may hold weights `transposed`: by inputs.
    """

    in_features: int
    members: dict[str, int]
    bias: bool
    gate: Activation | None = None
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
        """[N, in_features] -> [N, out_features], with a gate half as many. `norm` is applied to the
        rows first."""
        ...

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out_features], which may be overwritten, plus the product of a layer
        without a gate."""
        ...


class Method(Protocol):
    """A layer's weights while they are filled."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors to fill, by their names in a checkpoint."""
        ...

    def added_bytes(self, fp8_item_bytes: int) -> int:
        """Bytes that `pack` adds where a weight in FP8 takes so many of them, scales aside."""
        ...

    def pack(self) -> Product: ...
