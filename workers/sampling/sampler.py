"""From logits to tokens: greedy, or by temperature, top-k, top-p, min-p and a uniform number."""

import numpy as np
import torch

from workers.device.transfer import to_device
from workers.sampling.adjustments import Adjustments, TokenMask, adjust, with_mask
from workers.sampling.cpu import draw
from workers.sampling.sampling_table import SamplingRows
from workers.sampling.token_counts import TokenCounts


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    counts: TokenCounts,
    mask: TokenMask | None = None,
) -> torch.Tensor:
    """One token for each row of [S, V] logits, int32[S] on their device; `logits` stay unchanged.

    The rows' adjustments and `mask` come first. Then, without a temperature, the best token, else
    one of the `top_k` best (0: all), of these one of the fewest whose share of them reaches
    `top_p`, at least one, and of these one of those that are at least `min_p` times as probable as
    the best. Among equals the lowest ids are the best. -1 where a row holds NaN or +inf or nothing
    but -inf; other rows do not notice. What penalised rows get is counted in `counts`.

    On the CPU logits are float32. On a GPU they may be of any float dtype, nothing waits for it,
    and tokens are the CPU's except where a sum rounds to the other side of an edge.
    """
    adjustments = rows.adjustments if mask is None else with_mask(rows.adjustments, mask)
    if logits.device.type == "cpu":
        adjusted = logits if adjustments is None else adjust(logits, adjustments, counts, mask)
        tokens = draw(adjusted, rows)
    else:
        # Only there are the kernels to be had.
        from workers.sampling import cuda  # noqa: PLC0415

        tokens = cuda.sample(logits, rows, adjustments, counts, mask)
    if adjustments is not None:
        _count(tokens, adjustments, counts)
    return tokens


def _count(tokens: torch.Tensor, adjustments: Adjustments, counts: TokenCounts) -> None:
    counted = adjustments.counted
    if len(counted):
        columns = [adjustments.slots[counted], adjustments.rows[counted]]
        slots, rows = to_device([column.astype(np.int64) for column in columns], tokens.device)
        counts.add(slots, tokens[rows].long())
