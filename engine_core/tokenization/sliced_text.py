"""A long text, tokenized slice by slice, and not further than its tokens are of use."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from tokenizers import Encoding
from tokenizers.models import Unigram

from engine_core.tokenization.tokenizer import Tokenizer

SLICE_CHARACTERS = 64 * 1024
"""No text of so many is tokenized in parts."""
_CONTEXT = 128
"""Characters on either side of a place that decide about the tokens there."""
_CANDIDATES = 32
_GROWTH = 16
_SIGNS = r"、。\uff0c\uff01\uff1f\uff1b\uff1a"
"""Between the words of Chinese and Japanese."""
_SPACE = re.compile(rf"(?<=\S)(?=[ {_SIGNS}])|(?<=\n)(?=\S)")


@dataclass(frozen=True, slots=True)
class _Slice:
    """The tokens of a text from `start` to `stop`. If it `is_apart`, what follows is tokenized like
    a text of its own."""

    start: int
    stop: int
    encoding: Encoding
    is_apart: bool = True


class SlicedText:
    """The tokens of a text, from its beginning or from its end. The text is divided where that
    changes no token.

    The best places are before a space and behind a line, where both sides are tokenized like two
    texts. Without such a place, a slice that is tokenized from its beginning may end between two
    tokens, if those behind are found again when their text alone is tokenized. This suffices,
    because byte-pair encoding has made a row of tokens if it makes each two neighbours of their
    text (the crate `bpe` of github.com/github/rust-gems). A unigram model has no such place.
    """

    def __init__(
        self, tokenizer: Tokenizer, text: str, *, from_end: bool = False, offsets: bool = False
    ) -> None:
        """With `offsets` the tokens' places are known, too."""
        self._tokenizer, self._text, self._offsets = tokenizer, text, offsets
        self._from_end = self._can_take_last = from_end
        self._before: deque[_Slice] = deque()
        self._behind: deque[_Slice] = deque()
        # What is not tokenized yet is between these.
        self._start, self._stop = 0, len(text)

    @property
    def is_complete(self) -> bool:
        return self._start == self._stop and bool(self._before or self._behind)

    @property
    def num_tokens(self) -> int:
        return _num_tokens(self._before) + _num_tokens(self._behind)

    def has_more_than(self, most: int) -> bool:
        """Whether there are more than `most` tokens next to the side that is tokenized first."""
        return _num_tokens(self._behind if self._from_end else self._before) > most

    def take(self) -> int:
        """Tokenize one slice more, and return how many characters it had."""
        if part := self._last() if self._can_take_last else None:
            self._behind.appendleft(part)
            self._stop = part.start
        else:
            self._can_take_last = False
            self._before.append(part := self._first())
            self._start = part.stop
        return part.stop - part.start

    def keep_last(self, most: int) -> None:
        """Forget slices at the beginning while there are more than `most` tokens behind them."""
        while self._before and self.num_tokens - len(self._before[0].encoding) > most:
            self._before.popleft()

    def merged(self) -> Encoding:
        """The slices so far, as one text without special tokens."""
        slices = [part.encoding for part in (*self._before, *self._behind)]
        return Encoding.merge(slices, growing_offsets=False)

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Where each token begins and ends in the text."""
        for part in (*self._before, *self._behind):
            for start, stop in part.encoding.offsets:
                yield part.start + start, part.start + stop

    def _last(self) -> _Slice | None:
        """A slice of what is left, from its end. None where there is no space to divide at."""
        most = self._stop - SLICE_CHARACTERS
        if most <= 0:
            return self._slice(0, self._stop)
        spaces = [*_SPACE.finditer(self._text, max(most - SLICE_CHARACTERS, 0), most)]
        for space in spaces[: -_CANDIDATES - 1 : -1]:
            if self._divides(space.start()):
                return self._slice(space.start(), self._stop)
        return None

    def _first(self) -> _Slice:
        """A slice of what is left, from its beginning. Where the text cannot be divided there, all
        of it, in place of all slices."""
        continues = bool(self._before) and not self._before[-1].is_apart
        part = self._to_space(continues=continues)
        if continues and not self._tokenizer.starting_ids.isdisjoint(part.encoding.ids):
            self._before.clear()
            self._behind.clear()
            self._stop = len(self._text)
            return self._slice(0, self._stop)
        return part

    def _to_space(self, *, continues: bool) -> _Slice:
        start, stop = self._start, self._stop
        least = start + SLICE_CHARACTERS
        if least >= stop:
            return self._slice(start, stop, continues=continues)
        spaces = _SPACE.finditer(self._text, least, min(least + SLICE_CHARACTERS, stop))
        for space in islice(spaces, _CANDIDATES):
            if self._divides(space.start()):
                return self._slice(start, space.start(), continues=continues)
        return self._to_token(start, stop, continues=continues)

    def _to_token(self, start: int, stop: int, *, continues: bool) -> _Slice:
        size = SLICE_CHARACTERS
        # Where the tokens of a run begin is decided by its end.
        known = not isinstance(self._tokenizer.raw.model, Unigram)
        while known and (end := start + size + 2 * _CONTEXT) < stop:
            ahead = self._encode(start, end, continues, offsets=True)
            ids = ahead.ids
            for count, length in islice(_boundaries(ahead, size), _CANDIDATES):
                at = start + length
                if self._continues_with(ids[count:], at):
                    encoding = self._encode(start, at, continues, self._offsets)
                    if encoding.ids == ids[:count]:
                        return _Slice(start, at, encoding, is_apart=False)
            size *= _GROWTH
        return self._slice(start, stop, continues=continues)

    def _divides(self, at: int) -> bool:
        """Whether the two sides of a place are tokenized independently of each other."""
        start, stop = max(at - _CONTEXT, 0), at + _CONTEXT
        both = self._encode(start, stop).ids
        return both == self._encode(start, at).ids + self._encode(at, stop).ids

    def _continues_with(self, ids: list[int], at: int) -> bool:
        """Whether what follows a place is tokenized as `ids`, as far as that can be seen."""
        found = self._encode(at, at + 2 * _CONTEXT, continues=True, offsets=True)
        count = sum(stop <= _CONTEXT for _, stop in found.offsets)
        return count > 0 and found.ids[:count] == ids[:count]

    def _slice(self, start: int, stop: int, *, continues: bool = False) -> _Slice:
        return _Slice(start, stop, self._encode(start, stop, continues, self._offsets))

    def _encode(
        self, start: int, stop: int, continues: bool = False, offsets: bool = False
    ) -> Encoding:
        return self._tokenizer.encodings(
            [self._text[start:stop]], add_special_tokens=False, offsets=offsets, continues=continues
        )[0]


def _boundaries(encoding: Encoding, most: int) -> Iterator[tuple[int, int]]:
    """How many tokens, and how many characters, are before each place between two tokens. The last
    place is first, and none is behind `most` characters."""
    offsets = encoding.offsets
    for count in range(len(offsets) - 1, 0, -1):
        start = offsets[count][0]
        if 0 < start <= most and offsets[count - 1][1] <= start:
            yield count, start


def _num_tokens(slices: Iterable[_Slice]) -> int:
    return sum(len(part.encoding) for part in slices)
