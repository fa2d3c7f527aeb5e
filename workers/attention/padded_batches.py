"""Groups rows of different lengths into dense batches, and makes their masks."""

import numpy as np
import torch

from workers.device.transfer import to_device
from workers.step.rows import IntArray


def padded_batches(lengths: IntArray, max_padding: float) -> list[list[int]]:
    """Group rows of the given lengths into batches, each padded to its longest row.

    Greedy from the longest row down: a row joins the batch as long as padding is at most the
    fraction `max_padding` of the batch's positions. Within a batch, rows keep their order.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    longest = used = 0
    by_length = np.argsort(-lengths, kind="stable")
    for row, length in zip(by_length.tolist(), lengths[by_length].tolist(), strict=True):
        if batch and used + length < (1 - max_padding) * longest * (len(batch) + 1):
            batches.append(sorted(batch))
            batch = []
        if not batch:
            longest, used = length, 0
        batch.append(row)
        used += length
    if batch:
        batches.append(sorted(batch))
    return batches


def padding_mask(
    lengths: IntArray, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """An additive mask [rows, 1, 1, longest]: 0 for the tokens of each row, -inf for its padding.

    None if no row is padded.
    """
    longest = int(lengths.max())
    if lengths.min() == longest:
        return None
    padding = np.arange(longest) >= lengths[:, None]
    (mask,) = to_device([np.where(padding, np.float32(-np.inf), np.float32(0))], device)
    return mask[:, None, None].to(dtype)
