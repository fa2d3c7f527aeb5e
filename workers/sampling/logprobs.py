"""Log-probabilities of chosen tokens and of the best alternatives: tensors on the device, and the
message made of them."""

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


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor, width: int) -> TokenLogprobs:
    """Log-probabilities of `tokens` integer[N], and of the `width` best tokens, by [N, V] logits.

    A token of -1 (a failed row) gets NaN, like everything else in its row.
    """
    if logits.device.type != "cpu":
        # Imported here, because a CPU host may have no Triton.
        from workers.sampling import cuda  # noqa: PLC0415

        return cuda.log_probabilities(logits, tokens, width)
    normalised = logits.log_softmax(dim=-1)
    chosen = normalised.gather(1, tokens.long().clamp(min=0)[:, None])
    top, top_ids = normalised.topk(width, dim=-1)
    return TokenLogprobs(chosen[:, 0], top_ids.int(), top)


def ranks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The rank of `tokens` integer[N] by [N, V] logits, int32[N]: 1 is the most probable token, and
    equal logits share the best rank."""
    own = logits.gather(1, tokens.long().clamp(min=0)[:, None])
    return (logits > own).sum(dim=-1, dtype=torch.int32) + 1
