"""The result of a step: messages that heads make of its final hidden states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workers.device.transfer import to_bytes


@dataclass(frozen=True, slots=True)
class HeadResult:
    """A `message` whose fields are still tensors, at first on the device, or such messages."""

    message: Callable[..., Any]
    fields: "Mapping[str, torch.Tensor | HeadResult]"

    def to_host(self) -> "HeadResult":
        """Copy the result to pinned memory, where it is complete once the current stream has come
        to it."""
        fields = {
            name: value.to_host()
            if isinstance(value, HeadResult)
            else value.to("cpu", non_blocking=True)
            for name, value in self.fields.items()
        }
        return HeadResult(self.message, fields)

    def to_output(self, *first: int) -> Any:
        """Make the message, of tensors on the host. A step's begins with the step's number."""
        fields = {
            name: value.to_output() if isinstance(value, HeadResult) else to_bytes(value)
            for name, value in self.fields.items()
        }
        return self.message(*first, **fields)
