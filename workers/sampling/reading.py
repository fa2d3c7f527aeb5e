"""Reads given tokens at a prompt's last position: their logits, or their log-probabilities."""

from typing import NamedTuple

import torch

from workers.contract.messages import LIKELIEST


class ReadTokens(NamedTuple):
    """N tokens, or `LIKELIEST`, that are read of R of a step's S rows, int64 on the device.

    rows    [R], which of the S rows, ascending
    owners  [N], which of the R rows each token is read of
    ids     [N]
    """

    rows: torch.Tensor
    owners: torch.Tensor
    ids: torch.Tensor


def read_logits(logits: torch.Tensor, tokens: ReadTokens | None = None) -> torch.Tensor:
    """Read what a head made of the last positions of S rows, in float32.

    Without `tokens` these are the logits of K tokens that it computes alone, [S, K]. Of [S, V]
    logits they are the log-probabilities of `tokens`, [N].
    """
    if tokens is None:
        return logits.float()
    own = logits if len(tokens.rows) == len(logits) else logits.index_select(0, tokens.rows)
    largest, sums = _largest_and_sums(own)
    owners, ids = tokens.owners, tokens.ids
    read = torch.where(ids == LIKELIEST, largest[owners], own[owners, ids].float())
    return read - sums[owners]


def _largest_and_sums(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of each row of contiguous [N, V] logits, and the logarithm of the row's sum
    of exponentials, float32[N] each."""
    if logits.device.type != "cpu":
        # Imported here, because a CPU host may have no Triton.
        from workers.sampling import cuda  # noqa: PLC0415

        return cuda.largest_and_sums(logits)
    logits = logits.float()
    return logits.amax(dim=-1), logits.logsumexp(dim=-1)
