"""Bidirectional attention over ragged rows, as a few dense batches of similar lengths."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.backends.dense.product import attend_dense
from workers.attention.base import AttentionNeeds
from workers.attention.padded_batches import padded_batches, padding_mask
from workers.contract.model_config import AttentionKind
from workers.device.transfer import to_device
from workers.step.packed_step import PackedStep
from workers.step.rows import IntArray

_MAX_PADDING = 0.25


class _Batch(NamedTuple):
    """`rows` rows padded to `length` tokens. An additive `mask` broadcasts to [rows, H, length,
    length]; None without padding, window and position bias."""

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
    def of(
        cls, step: PackedStep, needs: AttentionNeeds, position_bias: torch.Tensor | None
    ) -> Self:
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
            mask = _mask(own, needs, position_bias, device)
            batches.append(_Batch(len(rows), len(offsets), mask))
        if len(batches) == 1 and lengths.min() == batches[0].length:
            return cls(batches, None, None)
        gather, back = to_device([np.concatenate(gathered), restore], device)
        return cls(batches, gather, back)


def _mask(
    lengths: IntArray,
    needs: AttentionNeeds,
    position_bias: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor | None:
    """The mask of a batch of rows of these lengths."""
    mask = padding_mask(lengths, needs.dtype, device)
    longest, window = int(lengths.max()), needs.kind.window
    if position_bias is not None:
        zero = position_bias.shape[1] // 2
        diagonals = position_bias[:, zero + 1 - longest : zero + longest].to(needs.dtype)
        # Row i of the windows is that of query longest - 1 - i.
        bias = diagonals.unfold(1, longest, 1).flip(1)
        mask = bias if mask is None else mask + bias
    if window is not None and window < longest:
        far = torch.full((longest, longest), -torch.inf, dtype=needs.dtype, device=device)
        band = far.triu(window) + far.tril(-window)
        mask = band if mask is None else mask + band
    return mask


def attend_bidirectional(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: BidirectionalPlan,
    kind: AttentionKind,
) -> torch.Tensor:
    """Every token attends to all tokens of its row. [T, H, D] over [T, Hkv, D] -> [T, H, D]."""
    group = queries.shape[1] // keys.shape[1]
    if group > 1:
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
    if plan.gather is not None:
        queries = queries.index_select(0, plan.gather)
        keys = keys.index_select(0, plan.gather)
        values = values.index_select(0, plan.gather)
    outputs: list[torch.Tensor] = []
    start = 0
    for batch in plan.batches:
        stop = start + batch.rows * batch.length
        shape = (batch.rows, batch.length, *queries.shape[1:])
        attended = attend_dense(
            queries[start:stop].view(shape).transpose(1, 2),
            keys[start:stop].view(shape).transpose(1, 2),
            values[start:stop].view(shape).transpose(1, 2),
            kind,
            batch.mask,
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
        start = stop
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if plan.restore is None else joined.index_select(0, plan.restore)
