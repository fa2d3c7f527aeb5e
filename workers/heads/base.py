"""What a head makes of a step's final hidden states: the result of the last stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from workers.contract.messages import StepOutput
from workers.device.transfer import to_bytes


class HeadResult(Protocol):
    """The results of a step's rows while they are still tensors on the device."""

    def to_host(self) -> Self:
        """The same on the host, where it is once the current stream has come to it.

        A copy that need not wait goes to pinned memory.
        """
        ...

    def to_output(self, step: int) -> StepOutput:
        """The message, of tensors on the host, without times."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Vectors or scores: the tensors of a `message`, by its fields."""

    message: Callable[..., StepOutput]
    tensors: Mapping[str, torch.Tensor]

    def to_host(self) -> "EncodedRows":
        tensors = {name: to_host(tensor) for name, tensor in self.tensors.items()}
        return EncodedRows(self.message, tensors)

    def to_output(self, step: int) -> StepOutput:
        fields = {name: to_bytes(tensor) for name, tensor in self.tensors.items()}
        return self.message(step, **fields)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host, once the current stream has come to the copy."""
    return tensor.to("cpu", non_blocking=True)
