"""An encode step as a stage's layers see it: whole texts, packed, as tensors on its device."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from workers.contract.messages import EncodeStep
from workers.device.transfer import to_device
from workers.step.padding import lengthened, padded_count
from workers.step.rows import IntArray, LongArray, offsets


@dataclass(frozen=True, slots=True)
class PackedStep:
    """R rows, T tokens (rows one after another, then padding). Every row starts at position 0.

    tokens          int64[T']  T' >= T: on the CPU a step is padded to at least four tokens, because
    positions       int64[T']  a matrix product of fewer rows takes another path and rounds
                               otherwise
    token_types     int64[T'] or None, where all are 0
    query_starts    int32[R + 1]
    row_lens        int32[R]
    query_lens      int32[R], the same as a NumPy array, for planning without a read-back
    unpooled_lens   int32[R] or None, where all are 0: the first tokens of each row that are not
                    pooled, fewer than the row has
    state_indices   int64[S] or None, where there are none: the tokens whose states are requested
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor | None
    query_starts: torch.Tensor
    row_lens: torch.Tensor
    query_lens: IntArray
    unpooled_lens: torch.Tensor | None
    state_indices: torch.Tensor | None

    @classmethod
    def of(cls, message: EncodeStep, device: torch.device) -> Self:
        """Computed flat with NumPy on the CPU, then sent to the device in one copy."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)  # torch writes to it
        query_starts = offsets(query_lens)
        total = int(query_starts[-1])
        padded = padded_count(total, device)
        positions = np.zeros(padded, np.int64)
        positions[:total] = np.arange(total) - np.repeat(query_starts[:-1], query_lens)
        tokens = lengthened(np.frombuffer(message.tokens, np.int32), padded)
        optional = {
            "token_types": lengthened(np.frombuffer(message.token_types, np.uint8), padded)
            if message.token_types
            else None,
            "unpooled_lens": np.frombuffer(bytearray(message.unpooled_lens), np.int32)
            if message.unpooled_lens
            else None,
            "state_indices": _state_indices(message.token_states, query_starts)
            if message.token_states
            else None,
        }
        given = {name: array for name, array in optional.items() if array is not None}
        always = [tokens, positions, query_starts, query_lens]
        tensors = to_device([*always, *given.values()], device)
        further = dict(zip(given, tensors[len(always) :], strict=True))
        return cls(
            *tensors[:2],
            token_types=further.get("token_types"),
            query_starts=tensors[2],
            row_lens=tensors[3],
            query_lens=query_lens,
            unpooled_lens=further.get("unpooled_lens"),
            state_indices=further.get("state_indices"),
        )

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())


def _state_indices(token_states: bytes, starts: IntArray) -> LongArray:
    """`PackedStep.state_indices` of rows that start at `starts` int32[R + 1]."""
    rows = np.flatnonzero(np.frombuffer(token_states, np.uint8))
    return np.concatenate([np.arange(starts[row], starts[row + 1], dtype=np.int64) for row in rows])
