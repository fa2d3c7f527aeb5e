"""Changes to logits before sampling: masks, biases and penalties, in this order.

Log-probabilities are reported for the logits before all of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workers.device.transfer import on_device, to_array
from workers.sampling.token_counts import TokenCounts
from workers.step.rows import IntArray

FloatArray = npt.NDArray[np.float32]


class Bias(NamedTuple):
    """`values` float32[N] are added to the logits of N different tokens `ids` int32[N].

    These are `logit_bias`, and -inf for tokens that are barred. Kept on the host and sent with each
    step: OpenAI allows 300 entries a request, 3.6 KB, while a dense row would take half a megabyte
    of the device's memory for every slot.
    """

    ids: IntArray
    values: FloatArray


class TokenMask(NamedTuple):
    """The tokens that grammars allow in M of a step's rows.

    rows   int32[M], which of the step's S rows
    words  int32[M, ceil(V / 32)] on the logits' device: bit i % 32 of word i // 32 is 1 where token
           i is allowed
    """

    rows: IntArray
    words: torch.Tensor

    @classmethod
    def from_bytes(cls, masked: bytes, bits: bytes, device: torch.device) -> "TokenMask":
        """Of `DecodeStep.masked` and `StepMask.bits`."""
        rows = np.flatnonzero(np.frombuffer(masked, np.uint8)).astype(np.int32)
        words = np.frombuffer(bytearray(bits), np.int32).reshape(len(rows), -1)
        return cls(rows, on_device(words, device))


@dataclass(frozen=True, slots=True)
class Adjustments:
    """The A rows of a step whose logits change.

    rows        int32[A]    which of the step's S rows, ascending
    slots       int32[A]    the slot whose counts its penalties read, -1 without penalties
    presence    float32[A]  OpenAI's presence penalty
    frequency   float32[A]  OpenAI's frequency penalty
    repetition  float32[A]  of prompt and output (Keskar et al. 2019, arXiv:1909.05858)
    biases      by index among the A
    mask_rows   int32[A]    the row's index among the M of a `TokenMask`, -1 for none; None without
                            a mask
    """

    rows: IntArray
    slots: IntArray
    presence: FloatArray
    frequency: FloatArray
    repetition: FloatArray
    biases: dict[int, Bias]
    mask_rows: IntArray | None

    @property
    def counted(self) -> npt.NDArray[np.intp]:
        """Which of the A rows have their tokens counted."""
        return np.flatnonzero(self.slots >= 0)


def adjust(
    logits: torch.Tensor, adjustments: Adjustments, counts: TokenCounts, mask: TokenMask | None
) -> torch.Tensor:
    """CPU: adjusted float32[S, V]; `logits` stay unchanged."""
    changed = to_array(logits).copy()
    for index, row in enumerate(adjustments.rows.tolist()):
        values = changed[row]
        if mask is not None and adjustments.mask_rows is not None:
            _mask(values, to_array(mask.words), int(adjustments.mask_rows[index]))
        if index in adjustments.biases:
            bias = adjustments.biases[index]
            values[bias.ids] += bias.values
        slot = int(adjustments.slots[index])
        if slot >= 0:
            _penalise(values, to_array(counts.table)[slot], adjustments, index)
    return on_device(changed, logits.device)


def _mask(values: FloatArray, words: IntArray, row: int) -> None:
    if row >= 0:
        allowed = np.unpackbits(words[row].view(np.uint8), bitorder="little", count=len(values))
        values[allowed == 0] = -np.inf


def _penalise(
    values: FloatArray, seen: npt.NDArray[np.int16], adjustments: Adjustments, index: int
) -> None:
    """Apply penalties to one row's `values` [V], by its counts `seen` [V]."""
    ids = np.flatnonzero(seen)
    logits, sampled = values[ids], (seen[ids] >> 1).astype(np.float32)
    repetition = adjustments.repetition[index]
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    logits -= adjustments.frequency[index] * sampled
    values[ids] = logits - adjustments.presence[index] * (sampled > 0)
