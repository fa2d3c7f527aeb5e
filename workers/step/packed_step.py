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
    output_indices  int64[N]: which of (R pooled vectors, then T token states) are requested; None
                    where all are pooled vectors
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor | None
    query_starts: torch.Tensor
    row_lens: torch.Tensor
    query_lens: IntArray
    output_indices: torch.Tensor | None

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
        arrays = [tokens, positions, query_starts, query_lens]
        has_types, has_states = bool(message.token_types), bool(message.token_states)
        if has_types:
            arrays.append(lengthened(np.frombuffer(message.token_types, np.uint8), padded))
        if has_states:
            arrays.append(_output_indices(message.token_states, query_starts))
        tensors = to_device(arrays, device)
        return cls(
            *tensors[:2],
            token_types=tensors[4] if has_types else None,
            query_starts=tensors[2],
            row_lens=tensors[3],
            query_lens=query_lens,
            output_indices=tensors[-1] if has_states else None,
        )

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())


def _output_indices(token_states: bytes, starts: IntArray) -> LongArray:
    """`PackedStep.output_indices` of rows that start at `starts` int32[R + 1]."""
    num_rows = len(token_states)
    return np.concatenate(
        [
            np.arange(starts[row], starts[row + 1], dtype=np.int64) + num_rows
            if requested
            else np.array([row], np.int64)
            for row, requested in enumerate(token_states)
        ]
    )
