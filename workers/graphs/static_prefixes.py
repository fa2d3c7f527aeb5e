"""The shared prefixes of captured decode steps: device memory at fixed addresses."""

import numpy as np
import torch

from workers.attention.prefix_tiles import TILE_NUMBERS, PrefixTables, PrefixTiler
from workers.step.prefixes import PrefixTensors
from workers.step.rows import IntArray, StepRows


class StaticPrefixes:
    """Room for any groups of a captured step of `size` rows of one token. What a step does not use
    is zero: tiles of no tokens, rows without a prefix."""

    tensors: PrefixTensors

    def __init__(self, size: int, tiler: PrefixTiler) -> None:
        self._size, self._tiler = size, tiler
        self._tiles, self._parts = tiler.most_tiles(size), tiler.most_parts(size)
        self._planned: tuple[StepRows, PrefixTables | None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer that `use` takes."""
        return (self._tiles * TILE_NUMBERS + 2 * self._size) * 4

    def use(self, buffer: torch.Tensor) -> None:
        """Make the tensors views of `buffer`, uint8[nbytes]."""
        numbers = buffer.view(torch.int32)
        starts, counts = numbers[: 2 * self._size].view(2, self._size)
        tiles = numbers[2 * self._size :].view(self._tiles, TILE_NUMBERS)
        self.tensors = PrefixTensors(tiles, starts, counts, self._parts)

    def tables(self, rows: StepRows) -> PrefixTables | None:
        """Which prefixes of these rows are attended once; None if no group is worth it."""
        if self._planned is None or self._planned[0] is not rows:
            tables = None
            if len(rows.groups):
                tables = self._tiler.tables(rows.groups, rows.query_lens, self._parts)
            self._planned = rows, tables
        return self._planned[1]

    def packed(self, rows: StepRows) -> IntArray:
        """The buffer's content for these rows."""
        packed = np.zeros(self.nbytes // 4, np.int32)
        tables = self.tables(rows)
        if tables is not None:
            count = len(tables.starts)
            packed[:count] = tables.starts
            packed[self._size : self._size + count] = tables.counts
            packed[2 * self._size :][: tables.tiles.size] = tables.tiles.ravel()
        return packed
