"""Log-probabilities of chosen tokens and of the best alternatives."""

import torch

from workers.sampling.token_logprobs import TokenLogprobs


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor, width: int) -> TokenLogprobs:
    """Of `tokens` integer[N] under [N, V] logits, beside the `width` best alternatives.

    A token of -1 (a failed row) is reported as NaN, like everything else in its row.
    """
    if logits.device.type != "cpu":
        # Only there are the kernels to be had.
        from workers.sampling import cuda  # noqa: PLC0415

        return cuda.log_probabilities(logits, tokens, width)
    normalised = logits.log_softmax(dim=-1)
    chosen = normalised.gather(1, tokens.long().clamp(min=0)[:, None])
    top, top_ids = normalised.topk(width, dim=-1)
    return TokenLogprobs(chosen[:, 0], top_ids.int(), top)


def ranks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The place of `tokens` integer[N] among all by [N, V] logits, int32[N]: 1 is the likeliest,
    and equals share the best place."""
    own = logits.gather(1, tokens.long().clamp(min=0)[:, None])
    return (logits > own).sum(dim=-1, dtype=torch.int32) + 1
