"""Tokens with their log-probabilities, as the engine sends them."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from engine_core.messages import Logprobs
from server.generation.text_piece import ScoredToken

# The log-probability of a token of probability 0: JSON, the form of answers, has no infinity.
LOWEST = -9999.0


class ScoredTokens(Sequence[ScoredToken]):
    """Tokens with their log-probabilities in arrays. They become objects, which are ten times as
    large, where some are taken."""

    def __init__(self, width: int, first: int | None = None) -> None:
        """With `width` alternatives each, or as many as the engine sends, behind the `first` token
        of a prompt, which nothing scores."""
        self._first = [] if first is None else [ScoredToken(first, None, [])]
        self._width = self._columns = width
        self._ids, self._ranks, self._offsets = array("i"), array("i"), array("q")
        self._chosen, self._top, self._top_ids = array("f"), array("f"), array("i")

    def add(self, ids: Iterable[int], scored: Logprobs, offsets: Iterable[int] = ()) -> None:
        """The next ones, and where they begin in the choice's text if they are part of it."""
        self._ids.extend(ids)
        self._offsets.extend(offsets)
        self._chosen.frombytes(scored.chosen)
        self._ranks.frombytes(scored.ranks)
        # As many for each: there are fewer than are wanted only if no more tokens exist.
        self._columns = min(self._width, scored.width)
        self._top.frombytes(_narrowed(scored.top, scored.width, self._columns))
        self._top_ids.frombytes(_narrowed(scored.top_ids, scored.width, self._columns))

    def __len__(self) -> int:
        return len(self._first) + len(self._ids)

    @overload
    def __getitem__(self, index: int) -> ScoredToken: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScoredToken]: ...
    def __getitem__(self, index: int | slice) -> ScoredToken | list[ScoredToken]:
        """Slices are of consecutive tokens."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            scored = range(begin, end)[len(self._first[begin:end]) :]
            return self._first[begin:end] + [self._scored(at - len(self._first)) for at in scored]
        at = range(len(self))[index]
        return self[at : at + 1][0]

    def __iter__(self) -> Iterator[ScoredToken]:
        return iter(self[:])

    def _scored(self, row: int) -> ScoredToken:
        top = range(row * self._columns, (row + 1) * self._columns)
        return ScoredToken(
            self._ids[row],
            max(self._chosen[row], LOWEST),
            [(self._top_ids[at], max(self._top[at], LOWEST)) for at in top],
            self._ranks[row] if self._ranks else 0,
            self._offsets[row] if self._offsets else 0,
        )


def _narrowed(rows: bytes, width: int, columns: int) -> bytes:
    """The first `columns` of each row of `width` numbers, of four bytes each: another request of
    the same step may have asked for more."""
    if columns == width:
        return rows
    begins = range(0, len(rows), 4 * width)
    return b"".join(rows[begin : begin + 4 * columns] for begin in begins)
