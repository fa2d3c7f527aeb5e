"""The engine's arrays of log-probabilities, token by token."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from engine_core.messages import Logprobs
from server.generation.text_piece import ScoredToken

# The log-probability of a token of probability 0: JSON, the form of answers, has no infinity.
LOWEST = -9999.0


def scored_tokens(
    tokens: Sequence[int], logprobs: Logprobs, width: int, offsets: Sequence[int] | None = None
) -> list[ScoredToken]:
    """N tokens with their N log-probabilities, the `width` likeliest at the position of each, and
    where each begins in the choice's text."""
    # A step brings one token as a rule: NumPy would take longer.
    chosen, top = array("f", logprobs.chosen), array("f", logprobs.top)
    ranks, top_ids = array("i", logprobs.ranks), array("i", logprobs.top_ids)
    entries: list[ScoredToken] = []
    for i, token in enumerate(tokens):
        begin = i * logprobs.width
        end = begin + min(width, logprobs.width)
        likeliest = [(top_ids[j], max(top[j], LOWEST)) for j in range(begin, end)]
        rank = ranks[i] if ranks else 0
        offset = 0 if offsets is None else offsets[i]
        entries.append(ScoredToken(token, max(chosen[i], LOWEST), likeliest, rank, offset))
    return entries


class _Scored(Sequence[ScoredToken], ABC):
    """Tokens with their log-probabilities in arrays. They become objects, which are ten times as
    large, where some are taken."""

    @overload
    def __getitem__(self, index: int) -> ScoredToken: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScoredToken]: ...
    def __getitem__(self, index: int | slice) -> ScoredToken | list[ScoredToken]:
        """Slices are of consecutive tokens."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            return self._between(begin, max(begin, end))
        at = range(len(self))[index]
        return self._between(at, at + 1)[0]

    def __iter__(self) -> Iterator[ScoredToken]:
        return iter(self[:])

    @abstractmethod
    def _between(self, begin: int, end: int) -> list[ScoredToken]:
        """Those from `begin` to `end`, 0 <= begin <= end <= len."""


class SampledTokens(_Scored):
    """Generated tokens with their log-probabilities."""

    def __init__(self, width: int) -> None:
        """With `width` alternatives each, or as many as the engine sends."""
        self._width = self._columns = width
        self._ids, self._offsets = array("i"), array("q")
        self._chosen, self._top_ids, self._top = bytearray(), bytearray(), bytearray()

    def add(self, token: int, sampled: Logprobs, offset: int) -> None:
        """The next one, and where it begins in the choice's text."""
        # As many for each: there are fewer than are wanted only if no more tokens exist.
        self._columns = min(self._width, sampled.width)
        size = 4 * self._columns
        self._ids.append(token)
        self._offsets.append(offset)
        self._chosen += sampled.chosen
        self._top_ids += sampled.top_ids[:size]
        self._top += sampled.top[:size]

    def __len__(self) -> int:
        return len(self._ids)

    def _between(self, begin: int, end: int) -> list[ScoredToken]:
        own, top = _places(self._columns, begin, end)
        chosen, top_ids, likeliest = self._chosen[own], self._top_ids[top], self._top[top]
        some = Logprobs(self._columns, bytes(chosen), bytes(top_ids), bytes(likeliest))
        return scored_tokens(self._ids[begin:end], some, self._width, self._offsets[begin:end])


class ScoredPrompt(_Scored):
    """A prompt's tokens with their log-probabilities, as far as the engine has sent them."""

    def __init__(
        self, ids: list[int], width: int, offsets: Callable[[], list[int]] | None = None
    ) -> None:
        """With `width` alternatives each; `offsets` finds where each begins in the text."""
        self._ids, self._width, self._offsets = ids, width, offsets
        self._parts: list[tuple[int, Logprobs]] = []  # with the position where each begins
        self._end = min(1, len(ids))  # nothing scores a prompt's first token

    def add(self, scored: Logprobs) -> None:
        """The next ones."""
        self._parts.append((self._end, _narrowed(scored, self._width)))
        self._end += len(scored.chosen) // 4

    def __len__(self) -> int:
        return self._end

    def _between(self, begin: int, end: int) -> list[ScoredToken]:
        tokens = [ScoredToken(self._ids[0], None, [])] if begin == 0 < end else []
        for start, part in self._parts:
            low, high = max(begin, start), min(end, start + len(part.chosen) // 4)
            if low < high:
                offsets = None if self._offsets is None else self._offsets()[low:high]
                some = _rows(part, low - start, high - start)
                tokens += scored_tokens(self._ids[low:high], some, self._width, offsets)
        return tokens


def _places(width: int, begin: int, end: int) -> tuple[slice, slice]:
    """Where some rows are in arrays of four bytes a row, and of `width` times that."""
    return slice(4 * begin, 4 * end), slice(4 * width * begin, 4 * width * end)


def _rows(logprobs: Logprobs, begin: int, end: int) -> Logprobs:
    own, top = _places(logprobs.width, begin, end)
    return Logprobs(
        logprobs.width,
        logprobs.chosen[own],
        logprobs.top_ids[top],
        logprobs.top[top],
        logprobs.ranks[own],
    )


def _narrowed(logprobs: Logprobs, width: int) -> Logprobs:
    """Another request of the same step may have asked for more."""
    if logprobs.width <= width:
        return logprobs
    ids, top = (
        np.frombuffer(data, np.int32).reshape(-1, logprobs.width)[:, :width].tobytes()
        for data in (logprobs.top_ids, logprobs.top)
    )
    return Logprobs(width, logprobs.chosen, ids, top, logprobs.ranks)
