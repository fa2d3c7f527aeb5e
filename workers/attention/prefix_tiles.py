"""Which prefixes of a step are attended once for all rows, and by which programs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workers.device.tuning import (
    PREFIX_MAX_PARTS,
    PREFIX_MIN_PART,
    PREFIX_MIN_SAVED,
    PREFIX_MIN_TOKENS,
    PREFIX_MOST_COUNTED,
    PREFIX_PART_TOKENS,
    PREFIX_PROGRAMS_PER_PROCESSOR,
)
from workers.step.rows import IntArray, offsets

TILE_NUMBERS = 6
"""(first token, tokens, row, start, end, part): what `shared_prefix.attend` takes."""


class PrefixTables(NamedTuple):
    """Tables of tiles int32[N, TILE_NUMBERS], and for R rows of starts and counts int32[R] (see
    `PrefixParts`)."""

    tiles: IntArray
    starts: IntArray
    counts: IntArray


@dataclass(frozen=True, slots=True)
class PrefixTiler:
    """Divides a step's groups into tiles of queries and prefixes into parts.

    tile_tokens  tokens whose query heads fill a program's tile
    kv_heads     programs an entry of the table
    block_size   tokens. Parts of prefixes are whole blocks.
    processors   of the GPU
    """

    tile_tokens: int
    kv_heads: int
    block_size: int
    processors: int

    def tables(
        self, groups: IntArray, query_lens: IntArray, most_parts: int | None = None
    ) -> PrefixTables | None:
        """Tables for rows of `query_lens` int32[R] tokens in `groups` int32[G, 3] of `DecodeStep`.

        None if no prefix is worth it. A prefix has at most `most_parts` parts, or as many as memory
        for so many tokens allows.
        """
        starts = offsets(query_lens)
        rows, counts, prefixes = groups.T
        firsts = starts[rows]
        tokens = starts[rows + counts] - firsts
        tiles = -(-tokens // self.tile_tokens)
        # A prefix, not a short one, that is read at most half as often as without the group.
        alone = offsets(-(-query_lens // self.tile_tokens))
        saved = alone[rows + counts] - alone[rows] - tiles
        paying = (saved >= tiles) & (prefixes >= PREFIX_MIN_TOKENS)
        # What all groups save may not be worth a launch.
        counted = np.minimum(prefixes, PREFIX_MOST_COUNTED).astype(np.int64)
        if (saved * counted)[paying].sum() <= PREFIX_MIN_SAVED:
            return None
        chosen = np.stack([rows, counts, prefixes, firsts, tokens, tiles])[:, paying]
        most_parts = most_parts or self.most_parts(int(starts[-1]))
        return self._tables(chosen, len(query_lens), most_parts)

    def most_tiles(self, rows: int) -> int:
        """The most entries of a table for `rows` rows of one token."""
        # A group is worth it if it has at least half as many tiles as rows.
        return rows // 2 + self._aim

    @staticmethod
    def most_parts(tokens: int) -> int:
        """The most parts of a prefix in a step of `tokens` tokens, by memory for their results."""
        return max(min(PREFIX_PART_TOKENS // tokens, PREFIX_MAX_PARTS), 1)

    @property
    def _aim(self) -> int:
        """Entries that fill the GPU."""
        return -(-PREFIX_PROGRAMS_PER_PROCESSOR * self.processors // self.kv_heads)

    def _tables(self, groups: IntArray, step_rows: int, most_parts: int) -> PrefixTables:
        """For `groups` int32[6, G]: first row, rows, prefix, first token, tokens, tiles."""
        rows, counts, prefixes, firsts, tokens, tiles = groups
        parts = self._parts(prefixes, tiles, most_parts)
        starts, own_parts = np.zeros((2, step_rows), np.int32)
        members = _within(counts) + np.repeat(rows, counts)
        starts[members], own_parts[members] = np.repeat(prefixes, counts), np.repeat(parts, counts)
        # An entry for each tile and part of each group, the longest prefixes' first.
        order = np.argsort(-(prefixes // parts), kind="stable")
        firsts, tokens, rows, prefixes, tiles, parts = (
            each[order] for each in (firsts, tokens, rows, prefixes, tiles, parts)
        )
        entries = tiles * parts
        which = np.repeat(np.arange(len(rows)), entries)
        part, tile = np.divmod(_within(entries), tiles[which])
        table = np.empty((len(which), TILE_NUMBERS), np.int32)
        done = tile * self.tile_tokens
        blocks, share = prefixes[which] // self.block_size, parts[which]
        table[:, 0] = firsts[which] + done
        table[:, 1] = np.minimum(tokens[which] - done, self.tile_tokens)
        table[:, 2] = rows[which]
        table[:, 3] = blocks * part // share * self.block_size
        table[:, 4] = blocks * (part + 1) // share * self.block_size
        table[:, 5] = part
        return PrefixTables(table, starts, own_parts)

    def _parts(self, prefixes: IntArray, tiles: IntArray, most: int) -> IntArray:
        """int32[G]: parts of about equal length in all groups, which fill the GPU."""
        total = int((prefixes.astype(np.int64) * tiles).sum())
        length = max(-(-total // self._aim), PREFIX_MIN_PART, self.block_size)
        parts = np.minimum(-(-prefixes // length), prefixes // self.block_size)
        return np.clip(parts, 1, most).astype(np.int32)


def _within(counts: IntArray) -> IntArray:
    """0, 1, … up to each of `counts`, one after another."""
    ends = np.cumsum(counts, dtype=np.int32)
    return np.arange(int(ends[-1]), dtype=np.int32) - np.repeat(ends - counts, counts)
