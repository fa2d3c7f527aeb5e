"""What changes logits before anything is drawn: masks, biases and penalties.

In this order: mask, bias, penalties; then temperature, top-k, top-p, min-p choose among what is
left. Log-probabilities are reported of the logits before all of it.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workers.device.transfer import on_device, to_array
from workers.sampling.token_counts import TokenCounts
from workers.step.tensors import IntArray

FloatArray = npt.NDArray[np.float32]


class Bias(NamedTuple):
    """What is added to the logits of N different tokens (int32[N], float32[N]): `logit_bias`, and
    -inf where a token is barred.

    Kept on the host and sent with each step: OpenAI allows 300 entries a request, 3.6 KB, where a
    dense row would take half a megabyte of the device's memory for every slot.
    """

    ids: IntArray
    values: FloatArray


class TokenMask(NamedTuple):
    """The tokens that a grammar allows: `words` int32[M, ceil(V / 32)] on the logits' device,
    whose bit i % 32 of word i // 32 is 1 where token i is allowed, for `rows` int32[M]."""

    rows: IntArray
    words: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adjustments:
    """The A rows of a step whose logits change.

    rows        int32[A]    which of the step's S rows, ascending
    slots       int32[A]    the slot whose counts its penalties read, -1 without penalties
    presence, frequency     float32[A], OpenAI's: subtracted once, and as often as a token was
                            sampled
    repetition  float32[A]  of prompt and output (Keskar et al. 2019, arXiv:1909.05858): divides
                            positive logits of the tokens seen, multiplies the others
    biases      by place among the A
    mask_rows   int32[A]    which row of a `TokenMask`, -1 for none
    """

    rows: IntArray
    slots: IntArray
    presence: FloatArray
    frequency: FloatArray
    repetition: FloatArray
    biases: dict[int, Bias] = field(default_factory=dict[int, Bias])
    mask_rows: IntArray | None = None

    @property
    def counted(self) -> npt.NDArray[np.intp]:
        """The places among the A whose tokens are counted."""
        return np.flatnonzero(self.slots >= 0)


def with_mask(adjustments: Adjustments | None, mask: TokenMask) -> Adjustments:
    """The same, and the rows that `mask` names."""
    given = adjustments or _unchanged(0)
    rows = np.union1d(given.rows, mask.rows).astype(np.int32)
    places = np.searchsorted(rows, given.rows)
    merged = _unchanged(len(rows))
    for name in ("slots", "presence", "frequency", "repetition"):
        getattr(merged, name)[places] = getattr(given, name)
    mask_rows = np.full(len(rows), -1, np.int32)
    mask_rows[np.searchsorted(rows, mask.rows)] = np.arange(len(mask.rows))
    biases = {int(places[place]): bias for place, bias in given.biases.items()}
    return replace(merged, rows=rows, biases=biases, mask_rows=mask_rows)


def adjust(
    logits: torch.Tensor, adjustments: Adjustments, counts: TokenCounts, mask: TokenMask | None
) -> torch.Tensor:
    """CPU: float32[S, V] with the rows that change changed; `logits` stay as they are."""
    changed = to_array(logits).copy()
    for place, row in enumerate(adjustments.rows.tolist()):
        values = changed[row]
        if mask is not None and adjustments.mask_rows is not None:
            _mask(values, to_array(mask.words), int(adjustments.mask_rows[place]))
        if place in adjustments.biases:
            bias = adjustments.biases[place]
            values[bias.ids] += bias.values
        slot = int(adjustments.slots[place])
        if slot >= 0:
            _penalise(values, to_array(counts.table)[slot], adjustments, place)
    return on_device(changed, logits.device)


def _mask(values: FloatArray, words: IntArray, row: int) -> None:
    if row >= 0:
        allowed = np.unpackbits(words[row].view(np.uint8), bitorder="little", count=len(values))
        values[allowed == 0] = -np.inf


def _penalise(
    values: FloatArray, seen: npt.NDArray[np.int16], adjustments: Adjustments, place: int
) -> None:
    """Penalties on one row's `values` [V], by its counts `seen` [V]."""
    ids = np.flatnonzero(seen)
    logits, sampled = values[ids], (seen[ids] >> 1).astype(np.float32)
    repetition = adjustments.repetition[place]
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    logits -= adjustments.frequency[place] * sampled
    values[ids] = logits - adjustments.presence[place] * (sampled > 0)


def _unchanged(count: int) -> Adjustments:
    zeros = np.zeros(count, np.float32)
    return Adjustments(
        rows=np.zeros(count, np.int32),
        slots=np.full(count, -1, np.int32),
        presence=zeros,
        frequency=zeros.copy(),
        repetition=np.ones(count, np.float32),
    )
