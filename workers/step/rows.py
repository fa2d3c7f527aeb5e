"""The rows of a decode step, on the host."""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import DecodeStep
from workers.layers.linear import MIN_CPU_ROWS

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]

NO_GROUPS: IntArray = np.zeros((0, 3), np.int32)


class StepRows(NamedTuple):
    """R rows of T tokens.

    slots, query_lens, contexts  int32[R].
    starts       int32[R + 1]: where each row starts among the step's tokens.
    token_slots  int32[T]: each token's slot.
    positions    int64[T]: each token's position in its row.
    groups       int32[G, 3], as in `DecodeStep`.
    """

    slots: IntArray
    query_lens: IntArray
    contexts: IntArray
    starts: IntArray
    token_slots: IntArray
    positions: LongArray
    groups: IntArray = NO_GROUPS

    @classmethod
    def of(cls, message: DecodeStep) -> Self:
        slots = np.frombuffer(bytearray(message.slots), np.int32)  # torch wants it writable
        query_lens = np.frombuffer(message.query_lens, np.int32)
        rows = cls.over(slots, query_lens, np.frombuffer(message.starts, np.int32))
        if not message.groups:
            return rows
        return rows._replace(groups=np.frombuffer(message.groups, np.int32).reshape(-1, 3))

    @classmethod
    def over(cls, slots: IntArray, query_lens: IntArray, cached: IntArray) -> Self:
        """Rows of `query_lens` tokens each behind `cached` ones, int32[R] each."""
        contexts = cached + query_lens
        starts = offsets(query_lens)
        token_slots = np.repeat(slots, query_lens)
        positions = np.repeat(contexts - starts[1:], query_lens) + np.arange(len(token_slots))
        return cls(slots, query_lens, contexts, starts, token_slots, positions)

    def groups_among(self, subset: npt.NDArray[np.intp]) -> IntArray:
        """The groups of the rows `subset`, rising, which are counted anew."""
        firsts, counts = self.groups[:, 0], self.groups[:, 1]
        begin, end = np.searchsorted(subset, firsts), np.searchsorted(subset, firsts + counts)
        groups = self.groups.copy()
        groups[:, 0], groups[:, 1] = begin, end - begin
        return groups[groups[:, 1] > 1]

    @property
    def total(self) -> int:
        return len(self.token_slots)

    @property
    def last_token_indices(self) -> LongArray:
        """int64[R]: the index of each row's last token among the T."""
        return self.starts[1:].astype(np.int64) - 1


def offsets(lens: IntArray) -> IntArray:
    """Where each row starts among the step's tokens, and their number: int32[R + 1]."""
    found = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=found[1:])
    return found


def leading_decode_rows(query_lens: IntArray) -> int:
    """How many rows precede the first one of several tokens."""
    several = np.flatnonzero(query_lens != 1)
    return int(several[0]) if len(several) else len(query_lens)


def padded(values: npt.NDArray[Any], device: torch.device) -> LongArray:
    """The `values` of a step's tokens as int64, on a CPU padded with zeros to MIN_CPU_ROWS.

    A matrix product of fewer rows takes another path there and rounds otherwise.
    """
    least = MIN_CPU_ROWS if device.type == "cpu" else 0
    wide = np.zeros(max(len(values), least), np.int64)
    wide[: len(values)] = values
    return wide
