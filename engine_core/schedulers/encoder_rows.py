"""The rows of an encode job as they become known: a struct of arrays, never an object a row."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

_ITEM = 4  # bytes of an int32


class RowsPart(NamedTuple):
    """The arrays of some of a job's rows."""

    tokens: bytearray
    lens: bytearray
    token_types: bytearray
    unattended: bytearray


@dataclass(slots=True, eq=False)
class EncoderRows:
    """N sequences of a job, of which row i is tokens[offsets[i]:offsets[i + 1]].

    tokens       int32[T]
    lens         int32[N]
    token_types  uint8[T] or empty
    dropped      int32[N], how many tokens truncation has removed; or empty
    unattended   int32[N], how many of a row's last tokens none attends to; or empty
    offsets      N + 1 integers, a list because steps read few at a time
    costs        the same of the rows' costs, in tokens of a short row
    cursor       the first row that is not submitted yet
    """

    tokens: bytearray
    lens: bytearray
    token_types: bytearray = field(default_factory=bytearray)
    dropped: bytearray = field(default_factory=bytearray)
    unattended: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(init=False)
    costs: list[int] = field(init=False)
    cursor: int = 0

    def __post_init__(self) -> None:
        own = memoryview(self.lens).cast("i").tolist()
        self.costs = self.offsets = [*accumulate(own, initial=0)]

    def extend(self, more: "EncoderRows") -> None:
        """Add the next rows of the job, whose costs are in the same unit."""
        self.tokens += more.tokens
        self.lens += more.lens
        self.token_types += more.token_types
        self.dropped += more.dropped
        self.unattended += more.unattended
        of_costs = self.costs is not self.offsets
        _extend(self.offsets, more.offsets)
        if of_costs:
            _extend(self.costs, more.costs)

    def weigh(self, attended: float) -> None:
        """Set the costs: a token that attends to N others takes 1 + `attended` · N."""
        lens = memoryview(self.lens).cast("i").tolist()
        costs = [int(tokens * (1 + attended * tokens)) for tokens in lens]
        self.costs = [*accumulate(costs, initial=0)]

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return self.offsets[-1]

    @property
    def tokens_left(self) -> int:
        """Tokens of the rows that are not submitted yet."""
        return self.offsets[-1] - self.offsets[self.cursor]

    @property
    def next_tokens(self) -> int:
        """Tokens of the first row that is not submitted."""
        return self.offsets[self.cursor + 1] - self.offsets[self.cursor]

    @property
    def next_cost(self) -> int:
        return self.costs[self.cursor + 1] - self.costs[self.cursor]

    @property
    def num_left(self) -> int:
        """Rows that are not submitted yet."""
        return len(self.offsets) - 1 - self.cursor

    def lens_of(self, rows: range) -> bytearray:
        """Copy the `lens` of some rows."""
        return self.lens[_ITEM * rows.start : _ITEM * rows.stop]

    def part(self, rows: range) -> RowsPart:
        """Copy the arrays of some rows."""
        first, last = self.offsets[rows.start], self.offsets[rows.stop]
        items = slice(_ITEM * rows.start, _ITEM * rows.stop)
        return RowsPart(
            self.tokens[_ITEM * first : _ITEM * last],
            self.lens_of(rows),
            self.token_types[first:last],
            self.unattended[items],
        )

    def answered(self, rows: range, *, with_ids: bool) -> tuple[bytes, bytes, list[bytes]]:
        """Copy for a client, of some rows: `lens`, `dropped`, and the ids of each, int32."""
        items = slice(_ITEM * rows.start, _ITEM * rows.stop)
        ids: list[bytes] = []
        if with_ids:
            ends = [_ITEM * end for end in self.offsets[rows.start : rows.stop + 1]]
            ids = [bytes(self.tokens[start:end]) for start, end in pairwise(ends)]
        return bytes(self.lens_of(rows)), bytes(self.dropped[items]), ids

    def fitting(self, cost: float, tokens: int, rows: int) -> int:
        """How many of the next rows take at most `cost` and have at most `tokens`. `rows` at
        most."""
        start, costs, offsets = self.cursor, self.costs, self.offsets
        stop = min(start + 1 + rows, len(offsets))
        if costs is offsets:
            cost = min(cost, tokens)
        else:
            stop = bisect_right(offsets, offsets[start] + tokens, lo=start, hi=stop)
        return bisect_right(costs, costs[start] + cost, lo=start, hi=stop) - 1 - start


def _extend(offsets: list[int], more: Sequence[int]) -> None:
    end = offsets[-1]
    offsets += [end + offset for offset in more[1:]]
