"""Step tensors made directly, one row at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

MIN_ROWS = 4


class PagedRow(NamedTuple):
    """Tokens of one row in a step, behind `start` that are cached, in the blocks of `table`."""

    tokens: list[int]
    start: int
    table: list[int]


def paged_step(rows: Sequence[PagedRow], block_size: int) -> PagedStep:
    """A decoder's step, padded to MIN_ROWS tokens."""
    width = max(-(-(row.start + len(row.tokens)) // block_size) for row in rows)
    tables = [(row.table + [0] * width)[:width] for row in rows]
    places = [range(row.start, row.start + len(row.tokens)) for row in rows]
    lens = [len(row.tokens) for row in rows]
    contexts = [place.stop for place in places]
    return PagedStep(
        tokens=_padded([row.tokens for row in rows]),
        positions=_padded([list(place) for place in places]),
        kv_indices=torch.tensor(
            [
                row.table[place // block_size] * block_size + place % block_size
                for row, own in zip(rows, places, strict=True)
                for place in own
            ]
        ),
        # Slots in reverse: a backend that takes a row's number for its slot reads another's blocks.
        block_tables=torch.tensor(tables[::-1], dtype=torch.int32),
        slots=torch.arange(len(rows) - 1, -1, -1, dtype=torch.int32),
        query_starts=torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        query_lens=np.array(lens, np.int32),
        contexts=np.array(contexts, np.int32),
    )


def packed_step(texts: Sequence[list[int]]) -> PackedStep:
    """An encoder's step of whole texts, padded to MIN_ROWS tokens."""
    lens = [len(text) for text in texts]
    return PackedStep(
        tokens=_padded(texts),
        positions=_padded([list(range(length)) for length in lens]),
        query_starts=torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32),
        row_lens=torch.tensor(lens, dtype=torch.int32),
        query_lens=np.array(lens, np.int32),
    )


def _padded(rows: Sequence[list[int]]) -> torch.Tensor:
    flat = [number for row in rows for number in row]
    return torch.tensor(flat + [0] * (MIN_ROWS - len(flat)))
