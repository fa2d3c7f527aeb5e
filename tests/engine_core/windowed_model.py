"""A simulated model whose layers have windows: groups of them, in one or more block tables each.

It has two layers. Keys of the first are the tokens; a position's key in the second is a hash of all
that its first layer sees, through every table. So a block that is given back too early, or copied
or found in one group alone, changes a later token.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from tests.engine_core.simulated_model import SimulatedModel, next_token
from workers.contract.cache_layout import CacheLayout
from workers.contract.messages import DecodeStep

Seen = list[Sequence[int]]
"""What a position sees through each table."""


def hashed(seen: Seen) -> int:
    return zlib.crc32(np.array([value for own in seen for value in own], np.int64).tobytes()) >> 1


def reaches(layout: CacheLayout) -> list[int]:
    """How far back a token sees, by table."""
    return [group.reach for group in layout.groups for _ in range(group.num_tables)]


def windowed_reference(prompt: list[int], max_tokens: int, layout: CacheLayout) -> list[int]:
    """The tokens that a request must get, computed alone and without a cache."""
    tokens, keys = list(prompt), list[int]()

    def seen(values: list[int], position: int) -> Seen:
        return [values[max(0, position - reach) : position + 1] for reach in reaches(layout)]

    while len(tokens) < len(prompt) + max_tokens:
        keys += [hashed(seen(tokens, at)) for at in range(len(keys), len(tokens))]
        tokens.append(next_token([hashed(seen(keys, len(keys) - 1))]))
    return tokens[len(prompt) :]


class WindowedModel(SimulatedModel):
    def __init__(self, num_blocks: int, layout: CacheLayout, max_running: int) -> None:
        super().__init__(num_blocks, layout.block_size, max_running)
        self._layout, self._reaches = layout, reaches(layout)
        entries = layout.num_tables * layout.max_blocks
        self._tables = np.full((max_running, entries), -1, np.int64)
        self._store = np.full((num_blocks, layout.block_size, 2), -7, np.int64)

    def _write(self, step: DecodeStep, slot: int, start: int, tokens: list[int]) -> None:
        for position, given in enumerate(tokens, start):
            if given < 0:
                assert self._sampled_in[slot] <= step.after, "the token was not waited for"
            token = self._last[slot] if given < 0 else given
            self._put(slot, position, 0, token)

    def _attend(self, rows: list[tuple[int, int, list[int], int]]) -> None:
        for slot, start, tokens, _ in rows:
            for position in range(start, start + len(tokens)):
                self._put(slot, position, 1, hashed(self._seen(slot, position, 0)))

    def _context(self, slot: int, length: int) -> list[int]:
        return [hashed(self._seen(slot, length - 1, 1))]

    def _put(self, slot: int, position: int, layer: int, value: int) -> None:
        block, offset = divmod(position, self._block_size)
        for table in self._tables_of(slot):
            self._store[table[block], offset, layer] = value

    def _seen(self, slot: int, position: int, layer: int) -> Seen:
        seen: Seen = []
        for table, reach in zip(self._tables_of(slot), self._reaches, strict=True):
            positions = np.arange(max(0, position - reach), position + 1)
            blocks, offsets = np.divmod(positions, self._block_size)
            assert (table[blocks] >= 0).all(), "a block that was never told"
            seen.append(self._store[table[blocks], offsets, layer].tolist())
        return seen

    def _tables_of(self, slot: int) -> np.ndarray:
        return self._tables[slot].reshape(self._layout.num_tables, -1)
