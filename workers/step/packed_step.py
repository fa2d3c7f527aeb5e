"""An encode step as a stage's layers see it: whole texts, packed, as tensors on its device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import EncodeStep
from workers.contract.model_config import PoolingMode, TokenOutput
from workers.device.transfer import to_device
from workers.device.tuning import TEXT_TILE_TOKENS
from workers.step.rows import IntArray, offsets, padded

ONE_TOKEN_MODES: frozenset[PoolingMode] = frozenset({"cls", "lasttoken"})
"""Modes of pooling that take one token of a row."""


def mode_of_one_token(modes: Sequence[PoolingMode]) -> PoolingMode | None:
    """The mode of pooling that takes one token of a row, where there is no other mode."""
    return modes[0] if len(modes) == 1 and modes[0] in ONE_TOKEN_MODES else None


Place = Callable[[Mapping[str, npt.NDArray[Any]]], dict[str, torch.Tensor]]
"""Puts arrays on a device, by their names in `PackedStep`, or of outputs and modes."""


@dataclass(frozen=True, slots=True)
class PackedStep:
    """R rows, T tokens (rows one after another, then padding). Every row starts at position 0.

    tokens          int64[T'], with T' >= T: see `padded`.
    positions       int64[T'].
    query_starts    int32[R + 1].
    tiles           int32[N, 3], as of `text_tiles`.
    query_lens      int32[R], a NumPy array, for planning without a read-back.
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
    tiles: torch.Tensor
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
        cls,
        message: EncodeStep,
        device: torch.device,
        modes: Sequence[PoolingMode] = (),
        place: Place | None = None,
    ) -> Self:
        """Computed flat with NumPy on the CPU, then sent to the device in one copy, or by `place`.
        `modes` are how the head pools."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)  # torch writes to it
        one_token: list[PoolingMode] = [mode for mode in modes if mode in ONE_TOKEN_MODES]
        arrays = _arrays(message, query_lens, one_token, device)
        if place is not None:
            tensors = place(arrays)
        else:
            tensors = dict(zip(arrays, to_device([*arrays.values()], device), strict=True))
        requested: dict[TokenOutput, torch.Tensor] = {
            output: tensors.pop(output) for output in message.requested
        }
        pooled: dict[PoolingMode, torch.Tensor] = {mode: tensors.pop(mode) for mode in one_token}
        alone = None if requested else mode_of_one_token(modes)
        attended = None
        if message.unattended_lens:
            attended = query_lens - np.frombuffer(message.unattended_lens, np.int32)
        return cls(
            query_lens=query_lens,
            requested=requested,
            attended_lens=attended,
            pooled=pooled,
            read=None if alone is None else pooled[alone],
            **tensors,
        )

    @property
    def row_lens(self) -> torch.Tensor:
        """int32[R], the same as `query_lens`."""
        return self.query_starts.diff()

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())


def _arrays(
    message: EncodeStep,
    query_lens: IntArray,
    one_token: Sequence[PoolingMode],
    device: torch.device,
) -> dict[str, npt.NDArray[Any]]:
    """Arrays that a step has on its device, as for `Place`."""
    query_starts, unpooled = offsets(query_lens), 0
    positions = np.arange(int(query_starts[-1])) - np.repeat(query_starts[:-1], query_lens)
    arrays: dict[str, npt.NDArray[Any]] = {
        "tokens": padded(np.frombuffer(message.tokens, np.int32), device),
        "positions": padded(positions, device),
        "query_starts": query_starts,
        "tiles": text_tiles(query_starts),
    }
    if message.token_types:
        arrays["token_types"] = padded(np.frombuffer(message.token_types, np.uint8), device)
    if message.unpooled_lens:
        unpooled = np.frombuffer(bytearray(message.unpooled_lens), np.int32)
        arrays["unpooled_lens"] = unpooled
    for output, rows in message.requested.items():
        arrays[output] = np.flatnonzero(np.repeat(np.frombuffer(rows, np.bool_), query_lens))
    for mode in one_token:
        tokens = query_starts[:-1] + unpooled if mode == "cls" else query_starts[1:] - 1
        arrays[mode] = padded(tokens, device)
    return arrays


def text_tiles(starts: IntArray) -> IntArray:
    """Tiles of at most `TEXT_TILE_TOKENS` queries, int32[N, 3]: the first one, and the tokens
    [begin, end) of the texts that it begins or is within. `starts` int32[R + 1] are those of texts.

    A tile has as many whole texts as fit, or a part of one that is larger.
    """
    most = np.searchsorted(starts, starts[:-1] + TEXT_TILE_TOKENS, side="right") - 1
    following: list[int] = np.maximum(most, np.arange(1, len(starts))).tolist()
    firsts, text = list[int](), 0
    while text < len(following):
        firsts.append(text)
        text = following[text]
    begins = starts[firsts]
    ends = np.append(begins[1:], starts[-1])
    parts = -(-(ends - begins) // TEXT_TILE_TOKENS)
    spans = np.repeat(np.stack([begins, begins, ends], axis=1), parts, axis=0)
    number = np.arange(len(spans)) - np.repeat(np.cumsum(parts) - parts, parts)
    spans[:, 0] += number * TEXT_TILE_TOKENS
    return spans


def most_tiles(tokens: int) -> int:
    """The most tiles of so many tokens. The worst are three of 130: a text of 129 has two, and one
    behind it has its own."""
    return 3 * tokens // (TEXT_TILE_TOKENS + 2) + 2
