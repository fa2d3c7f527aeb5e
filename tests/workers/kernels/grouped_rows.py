"""Rows of groups that share a prefix, over a paged cache, and the tables of kernels for them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from tests.workers.kernels.paged_rows import Heads, PagedRows
from workers.step.paged_step import PrefixParts


class Group(NamedTuple):
    """Tokens of a prefix, whole pages, and the rows that share it: each (own cached tokens,
    queries). A prefix of 0 is none."""

    prefix: int
    rows: list[tuple[int, int]]


class GroupedRows(PagedRows):
    """`PagedRows` whose groups' block tables begin with the blocks of the group's first row."""

    def __init__(
        self,
        groups: Sequence[Group],
        heads: Heads,
        page: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        rows = [(group.prefix + own, count) for group in groups for own, count in group.rows]
        super().__init__(rows, heads, page, dtype, device)
        self.groups, self.first_rows = groups, []
        row = 0
        for group in groups:
            self.first_rows.append(row)
            for member in range(row + 1, row + len(group.rows)):
                self._share(row, member, group.prefix, page)
            row += len(group.rows)

    def _share(self, first: int, member: int, prefix: int, page: int) -> None:
        """Give `member` the first row's prefix; what was its own shows if it is read."""
        whole = prefix // page
        theirs, own = self.block_tables[self.slots[[first, member]].long(), :whole]
        for cache in (self.keys, self.values):
            cache[own.long()] = torch.nan
        own.copy_(theirs)
        self.block_tables[int(self.slots[member]), :whole] = theirs
        for known in (self.row_keys, self.row_values):
            known[member][:prefix] = known[first][:prefix]

    def parts(self, most: int, dtype: torch.dtype = torch.float32) -> PrefixParts:
        """Unwritten, of rows whose prefixes have as many parts as `tiles` makes of them."""
        device, tokens = self.queries.device, len(self.queries)
        shape = (most, tokens, self.heads.queries, self.heads.size)
        prefixes = [group.prefix for group in self.groups for _ in group.rows]
        counts = [len(_cuts(prefix, most, self.keys.shape[1])) for prefix in prefixes]
        return PrefixParts(
            torch.full(shape, torch.nan, dtype=dtype, device=device),
            torch.full(shape[:-1], torch.nan, device=device),
            torch.tensor(prefixes, dtype=torch.int32, device=device),
            torch.tensor(counts, dtype=torch.int32, device=device),
        )

    def tiles(self, most_tokens: int, most_parts: int, spare: int = 2) -> torch.Tensor:
        """int32[N, 6]: each group's tokens by `most_tokens`, its prefix in `most_parts` parts of
        whole blocks, and `spare` entries of nothing."""
        starts = self.query_starts.tolist()
        tiles: list[list[int]] = [[0] * 6] * spare
        for group, row in zip(self.groups, self.first_rows, strict=True):
            stop = starts[row + len(group.rows)]
            cuts = _cuts(group.prefix, most_parts, self.keys.shape[1])
            for first in range(starts[row], stop, most_tokens):
                count = min(most_tokens, stop - first)
                tiles += [[first, count, row, *cut, part] for part, cut in enumerate(cuts)]
        return torch.tensor(tiles, dtype=torch.int32, device=self.queries.device)


def _cuts(prefix: int, most: int, page: int) -> list[tuple[int, int]]:
    """[0, prefix) in at most `most` parts of whole pages."""
    pages = prefix // page
    edges = [pages * part // most * page for part in range(most + 1)]
    return [(start, end) for start, end in pairwise(edges) if start < end]
