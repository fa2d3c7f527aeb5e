"""What the parts of a model have in common."""

from collections.abc import Sequence

import torch


class Layer:
    """A part of a model: it has weights of its own, or parts that have them.

    Its life: created with uninitialised weights, filled through `weights`, packed, then called.
    """

    def parts(self) -> "Sequence[Layer]":
        """The layers that this one is made of."""
        return ()

    def weights(self) -> dict[str, torch.Tensor]:
        """Canonical checkpoint name -> the tensor to fill. Only until `pack`."""
        return {name: weight for part in self.parts() for name, weight in part.weights().items()}

    def pack(self) -> None:
        """Weights are filled: bring them into the form that is read fastest."""
        for part in self.parts():
            part.pack()
