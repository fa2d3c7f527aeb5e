"""From logits to tokens, on the CPU or on a GPU."""

import numpy as np
import torch

from workers.device.transfer import to_device
from workers.sampling.adjustments import Adjustments, TokenMask, adjust
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

    Adjusts the logits (`mask`, biases, penalties), then takes the best token if the temperature is
    0; otherwise filters by top-k, top-p and min-p and draws one of the rest. `TokenSampling` has
    the order and the meaning of each parameter. Tokens sampled for penalised rows are added to
    `counts`. A row that holds NaN, +inf or only -inf gets -1; other rows are not affected.

    On the CPU logits are float32. On a GPU they may have any float dtype and the host does not wait
    for it; tokens are the same as on the CPU except where sums round differently at the edge of a
    filter or of a token's share.
    """
    adjustments = rows.adjustments(mask)
    if logits.device.type == "cpu":
        adjusted = logits if adjustments is None else adjust(logits, adjustments, counts, mask)
        tokens = draw(adjusted, rows)
    else:
        # Imported here, because a CPU host may have no Triton.
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
