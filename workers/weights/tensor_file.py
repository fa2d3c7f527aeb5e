"""The interface of files of tensors: one module of this folder a format."""

from collections.abc import Iterable
from typing import Protocol

import torch


class CheckpointError(ValueError):
    """Weights are missing, unreadable or do not fit the model; the message names file or tensor."""


class TensorFile(Protocol):
    """An open file of named tensors, which stay on the CPU and are read when asked for."""

    def keys(self) -> Iterable[str]:
        """The tensors' names."""
        ...

    def get_tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name. Raises CheckpointError if there is none."""
        ...
