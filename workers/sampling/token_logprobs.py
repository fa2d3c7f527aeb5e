"""Log-probabilities of chosen tokens: tensors on the device, and the message made of them."""

from dataclasses import dataclass

import torch

from workers.contract.messages import Logprobs
from workers.device.transfer import to_bytes


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """`workers.contract.messages.Logprobs` while its parts are still tensors.

    chosen   float32[N]
    top_ids  int32[N, width]
    top      float32[N, width]
    ranks    int32[N], for scored prompt tokens only
    """

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor
    ranks: torch.Tensor | None = None

    def to_host(self) -> "TokenLogprobs":
        """The same on the host; complete once the current stream has reached the copies."""
        return TokenLogprobs(
            chosen=self.chosen.to("cpu", non_blocking=True),
            top_ids=self.top_ids.to("cpu", non_blocking=True),
            top=self.top.to("cpu", non_blocking=True),
            ranks=None if self.ranks is None else self.ranks.to("cpu", non_blocking=True),
        )

    def to_message(self) -> Logprobs:
        """The message; the tensors must be on the host."""
        return Logprobs(
            width=self.top.shape[1],
            chosen=to_bytes(self.chosen),
            top_ids=to_bytes(self.top_ids),
            top=to_bytes(self.top),
            ranks=b"" if self.ranks is None else to_bytes(self.ranks),
        )
