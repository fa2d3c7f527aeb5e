"""The rows of an encode job: arrays, of which steps take one slice after the other."""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, eq=False)
class EncoderRows:
    """N sequences of a job: row i is tokens[offsets[i]:offsets[i + 1]]; rows from `cursor` on are
    not submitted yet. `tokens` int32[T], `token_types` uint8[T] or empty, `lens` int32[N] and
    `numbers` int32[N], those of the rows.

    `offsets` is a list of N + 1 integers: steps read few at a time, and a list is faster for that.
    `costs` are the same sums of what each row takes, in tokens of a short row.
    """

    tokens: npt.NDArray[np.int32]
    token_types: npt.NDArray[np.uint8]
    lens: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.int32] = field(init=False)
    offsets: list[int] = field(init=False)
    costs: list[int] = field(init=False)
    cursor: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.arange(len(self.lens), dtype=np.int32)
        self.costs = self.offsets = [0, *np.cumsum(self.lens).tolist()]

    def weigh(self, attended: float) -> None:
        """A token that attends to N others takes 1 + `attended` · N."""
        costs = [int(tokens * (1 + attended * tokens)) for tokens in self.lens.tolist()]
        self.costs = list(accumulate(costs, initial=0))

    @property
    def first_tokens(self) -> int:
        """Tokens of the first row."""
        return self.offsets[1]

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return self.offsets[-1]

    @property
    def next_tokens(self) -> int:
        """Tokens of the first row that is not submitted."""
        return self.offsets[self.cursor + 1] - self.offsets[self.cursor]

    @property
    def next_cost(self) -> int:
        """What that row takes."""
        return self.costs[self.cursor + 1] - self.costs[self.cursor]

    @property
    def num_left(self) -> int:
        """Rows that are not submitted yet."""
        return len(self.lens) - self.cursor

    def fitting(self, cost: float, tokens: int) -> int:
        """How many of the next rows take no more than `cost`, and have no more than `tokens`."""
        start, costs, offsets = self.cursor, self.costs, self.offsets
        if costs is offsets:
            return bisect_right(costs, costs[start] + min(cost, tokens), lo=start) - 1 - start
        by_cost = bisect_right(costs, costs[start] + cost, lo=start)
        by_tokens = bisect_right(offsets, offsets[start] + tokens, lo=start)
        return min(by_cost, by_tokens) - 1 - start
