"""Sampling on the GPU, from which nothing is read back: which kernels are launched follows from the
parameters that the host has."""

import numpy as np
import torch

from workers.device.transfer import to_device
from workers.kernels.sampling.adjust_logits import adjusted_logits
from workers.kernels.sampling.draw_tokens import DrawParameters, draw_tokens
from workers.kernels.sampling.logit_rows import (
    GroupStatistics,
    LogitRows,
    best_tokens,
    group_statistics,
)
from workers.sampling.sampler import TokenLogprobs
from workers.sampling.sampling_table import Adjustments, SamplingRows, TokenCounts, TokenMask

_COLDEST = np.float32(1e-20)
"""The lowest temperature used. Sampling is greedy at it, and below it the inverse may overflow."""


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    adjustments: Adjustments | None,
    counts: TokenCounts,
    mask: TokenMask | None,
) -> torch.Tensor:
    """One token for each row of contiguous [S, V] logits in any float dtype, int32[S]."""
    assert logits.is_contiguous(), "the kernels read rows of V logits"

    def given() -> LogitRows:
        if adjustments is None:
            return LogitRows(logits)
        return _adjusted(logits, adjustments, counts, mask)

    parameters = rows.parameters
    temperature, top_k = parameters["temperature"], parameters["top_k"]
    drawing = temperature > 0
    if not drawing.any():
        return best_tokens(given())
    top_p = np.where(drawing, parameters["top_p"], np.float32(1))
    min_p = np.where(drawing, parameters["min_p"], np.float32(0))
    top_k = np.where(drawing, np.where(top_k < logits.shape[1], top_k, 0), np.int32(1))
    temperature = np.where(drawing, np.maximum(temperature, _COLDEST), np.float32(1))
    columns = [1 / temperature, rows.uniforms(), top_p, min_p, top_k]
    truncated = bool(((top_k > 0) | (top_p < 1) | (min_p > 0)).any())
    sent = DrawParameters(*to_device(columns, logits.device))
    return draw_tokens(given(), sent, truncated=truncated)


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor, width: int) -> TokenLogprobs:
    """Log-probabilities of `tokens` integer[N] and of the `width` best tokens of each row. Logits
    are contiguous [N, V] in any float dtype."""
    chosen = logits.gather(1, tokens.long().clamp(min=0)[:, None])[:, 0]
    top, top_ids = logits.topk(width, dim=-1)
    normaliser = log_sum_exps(logits)
    return TokenLogprobs(
        chosen=chosen.float() - normaliser,
        top_ids=top_ids.int(),
        top=top.float() - normaliser[:, None],
    )


def log_sum_exps(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials, by groups: no logits are copied as float32.
    They are contiguous [N, V] in any float dtype."""
    return _whole_sums(*_statistics(logits))


def largest_and_sums(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of each row, and what `log_sum_exps` finds."""
    peaks, sums = _statistics(logits)
    return peaks.amax(dim=-1), _whole_sums(peaks, sums)


def _statistics(logits: torch.Tensor) -> GroupStatistics:
    assert logits.is_contiguous(), "the kernels read rows of V logits"
    return group_statistics(LogitRows(logits))


def _whole_sums(peaks: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    return (peaks + sums.log()).logsumexp(dim=-1)


def _adjusted(
    logits: torch.Tensor, adjustments: Adjustments, counts: TokenCounts, mask: TokenMask | None
) -> LogitRows:
    """The step's rows, the adjusted ones in float32. One copy sends what that needs."""
    adjusted_index = np.full(len(logits), -1, np.int32)
    adjusted_index[adjustments.rows] = np.arange(len(adjustments.rows))
    arrays = [adjusted_index, adjustments.rows, adjustments.slots, adjustments.penalties]
    if adjustments.mask_rows is not None:
        arrays.append(adjustments.mask_rows)
    sent = to_device([*arrays, *adjustments.biases], logits.device)
    index, rows, slots, penalties, *others = sent
    masked = None if mask is None else (others.pop(0), mask.words())
    table = counts.table if len(adjustments.counted) else None
    adjusted = adjusted_logits(logits, rows, slots, penalties, table, masked, others)
    return LogitRows(logits, adjusted, index)
