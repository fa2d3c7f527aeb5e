"""An encode step as a stage's layers see it: whole texts, packed, as tensors on its device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import EncodeStep
from workers.contract.model_config import PoolingMode, TokenOutput
from workers.device.transfer import to_device
from workers.step.rows import IntArray, offsets, padded

SINGLES: frozenset[PoolingMode] = frozenset({"cls", "lasttoken"})
"""Modes of pooling that take one token of a row."""


@dataclass(frozen=True, slots=True)
class PackedStep:
    """R rows, T tokens (rows one after another, then padding). Every row starts at position 0.

    tokens          int64[T'], with T' >= T: see `padded`.
    positions       int64[T'].
    query_starts    int32[R + 1].
    row_lens        int32[R].
    query_lens      int32[R], the same as a NumPy array, for planning without a read-back.
    token_types     int64[T'], or None where all are 0.
    unpooled_lens   int32[R], or None where all are 0: how many of each row's first tokens are not
                    pooled, fewer than the row has.
    requested       int64[S] for each requested output of tokens: their indices.
    attended_lens   int32[R], a NumPy array: how many of each row's first tokens are attended to,
                    or None where all are.
    pooled          int64[R'] for each mode of the pooling that takes one token of a row: its index.
                    R' as T'.
    read            one of these, where no other token's final state is read; else None.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    query_starts: torch.Tensor
    row_lens: torch.Tensor
    query_lens: IntArray
    token_types: torch.Tensor | None = None
    unpooled_lens: torch.Tensor | None = None
    requested: Mapping[TokenOutput, torch.Tensor] = field(
        default_factory=dict[TokenOutput, torch.Tensor]
    )
    attended_lens: IntArray | None = None
    pooled: Mapping[PoolingMode, torch.Tensor] = field(
        default_factory=dict[PoolingMode, torch.Tensor]
    )
    read: torch.Tensor | None = None

    @classmethod
    def of(
        cls, message: EncodeStep, device: torch.device, modes: Sequence[PoolingMode] = ()
    ) -> Self:
        """Computed flat with NumPy on the CPU, then sent to the device in one copy. `modes` are how
        the head pools."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)  # torch writes to it
        query_starts = offsets(query_lens)
        total = int(query_starts[-1])
        positions = np.arange(total) - np.repeat(query_starts[:-1], query_lens)
        arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": padded(np.frombuffer(message.tokens, np.int32), device),
            "positions": padded(positions, device),
            "query_starts": query_starts,
            "row_lens": query_lens,
        }
        if message.token_types:
            types = np.frombuffer(message.token_types, np.uint8)
            arrays["token_types"] = padded(types, device)
        if message.unpooled_lens:
            arrays["unpooled_lens"] = np.frombuffer(bytearray(message.unpooled_lens), np.int32)
        for output, rows in message.requested.items():
            arrays[output] = np.flatnonzero(np.repeat(np.frombuffer(rows, np.bool_), query_lens))
        singles: list[PoolingMode] = [mode for mode in modes if mode in SINGLES]
        for mode in singles:
            tokens = pooled_tokens(mode, query_starts, arrays.get("unpooled_lens"))
            arrays[mode] = padded(tokens, device)
        tensors = dict(zip(arrays, to_device([*arrays.values()], device), strict=True))
        requested: dict[TokenOutput, torch.Tensor] = {
            output: tensors.pop(output) for output in message.requested
        }
        pooled: dict[PoolingMode, torch.Tensor] = {mode: tensors.pop(mode) for mode in singles}
        alone = len(modes) == len(singles) == 1 and not requested
        attended = None
        if message.unattended_lens:
            attended = query_lens - np.frombuffer(message.unattended_lens, np.int32)
        return cls(
            query_lens=query_lens,
            requested=requested,
            attended_lens=attended,
            pooled=pooled,
            read=pooled[singles[0]] if alone else None,
            **tensors,
        )

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())


def pooled_tokens(mode: PoolingMode, starts: IntArray, unpooled: IntArray | None) -> IntArray:
    """The token of each row that "cls" or "lasttoken" takes, int32[R]: the first behind those
    `unpooled`, or the last."""
    if mode == "lasttoken":
        return starts[1:] - 1
    return starts[:-1] if unpooled is None else starts[:-1] + unpooled
