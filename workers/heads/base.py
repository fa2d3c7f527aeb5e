"""What a head makes of a step's final hidden states: the result of the last stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workers.contract.messages import StepOutput
from workers.device.transfer import to_bytes


@dataclass(frozen=True, slots=True)
class HeadResult:
    """A `message` whose fields are still tensors, at first on the device, or such messages."""

    message: Callable[..., Any]
    fields: "Mapping[str, torch.Tensor | HeadResult]"

    def to_host(self) -> "HeadResult":
        """The same on the host, where it is once the current stream has come to it.

        A copy that need not wait goes to pinned memory.
        """
        fields = {
            name: value.to("cpu", non_blocking=True)
            if isinstance(value, torch.Tensor)
            else value.to_host()
            for name, value in self.fields.items()
        }
        return HeadResult(self.message, fields)

    def to_output(self, step: int) -> StepOutput:
        """The message of a step, made of tensors on the host, without times."""
        return self.message(step, **self.values())

    def values(self) -> dict[str, Any]:
        """What the message has in its fields."""
        return {
            name: to_bytes(value)
            if isinstance(value, torch.Tensor)
            else value.message(**value.values())
            for name, value in self.fields.items()
        }
