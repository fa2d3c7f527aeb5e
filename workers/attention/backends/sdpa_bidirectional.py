"""Bidirectional attention over ragged rows, as a few dense batches of similar lengths."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from workers.attention.padded_batches import padded_batches, padding_mask
from workers.device.transfer import to_device
from workers.step.packed_step import PackedStep

_MAX_PADDING = 0.25


class _Batch(NamedTuple):
    """`rows` rows padded to `length` tokens; `mask` [rows, 1, 1, length], None without padding."""

    rows: int
    length: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class BidirectionalPlan:
    """How a step's tokens are gathered into dense batches, one after another, and restored.

    gather    int64[P]  the token at each padded position; padding repeats its row's last token, so
                        that no value of another row, finite or not, enters a product
    restore   int64[T]  the padded position of each token
    Both are None if the step's tokens already are one dense batch.
    """

    batches: list[_Batch]
    gather: torch.Tensor | None
    restore: torch.Tensor | None

    @classmethod
    def of(cls, step: PackedStep, dtype: torch.dtype) -> Self:
        device = step.tokens.device
        lengths = step.query_lens
        starts = np.cumsum(lengths) - lengths
        restore = np.empty(step.num_tokens, np.int64)
        gathered: list[npt.NDArray[np.int64]] = []
        batches: list[_Batch] = []
        filled = 0
        for rows in padded_batches(lengths, _MAX_PADDING):
            own = lengths[rows]
            offsets = np.arange(int(own.max()))
            tokens = starts[rows, None] + np.minimum(offsets, own[:, None] - 1)
            real = offsets < own[:, None]
            restore[tokens[real]] = filled + np.flatnonzero(real)
            filled += tokens.size
            gathered.append(tokens.ravel())
            batches.append(_Batch(len(rows), len(offsets), padding_mask(own, dtype, device)))
        if len(batches) == 1 and batches[0].mask is None:
            return cls(batches, None, None)
        gather, back = to_device([np.concatenate(gathered), restore], device)
        return cls(batches, gather, back)


def attend_bidirectional(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: BidirectionalPlan
) -> torch.Tensor:
    """Every token attends to all tokens of its row. [T, H, D] each; returns the same shape."""
    if plan.gather is not None:
        queries = queries.index_select(0, plan.gather)
        keys = keys.index_select(0, plan.gather)
        values = values.index_select(0, plan.gather)
    outputs: list[torch.Tensor] = []
    start = 0
    for batch in plan.batches:
        stop = start + batch.rows * batch.length
        shape = (batch.rows, batch.length, *queries.shape[1:])
        attended = F.scaled_dot_product_attention(
            queries[start:stop].view(shape).transpose(1, 2),
            keys[start:stop].view(shape).transpose(1, 2),
            values[start:stop].view(shape).transpose(1, 2),
            attn_mask=batch.mask,
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
        start = stop
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if plan.restore is None else joined.index_select(0, plan.restore)
