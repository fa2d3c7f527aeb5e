"""Log-probabilities of chosen tokens and of the best alternatives."""

import torch

from workers.sampling.token_logprobs import TokenLogprobs


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
