"""Reads given tokens at a prompt's last position: their logits, or their log-probabilities."""

from typing import NamedTuple

import torch


class ReadTokens(NamedTuple):
    """N tokens that are read of R of a step's S rows, int64 on the device.

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
    return own[tokens.owners, tokens.ids].float() - log_sum_exps(own)[tokens.owners]


def log_sum_exps(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum over each row of contiguous [N, V] logits, float32[N]."""
    if logits.device.type != "cpu":
        # Imported here, because a CPU host may have no Triton.
        from workers.sampling import cuda  # noqa: PLC0415

        return cuda.log_sum_exps(logits)
    return logits.float().logsumexp(dim=-1)
