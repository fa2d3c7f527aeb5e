"""What a head makes of a step's final hidden states: the result of the last stage."""

from typing import Protocol, Self

import torch

from workers.contract.messages import StepOutput
from workers.step.packed_step import PackedStep


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


class EncoderHead(Protocol):
    """Queues what makes one step's result of its final hidden states [T', hidden_size]."""

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> HeadResult: ...


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host, once the current stream has come to the copy."""
    return tensor.to("cpu", non_blocking=True)
