"""Parts of a text, with the tokens that they have within the whole."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tokenizers import Encoding
from tokenizers.models import Unigram

from engine_core.tokenization.tokenizer import Tokenizer

SLICE_CHARACTERS = 64 * 1024
"""No text of so many is tokenized in parts."""
_CONTEXT = 128
"""What a tokenizer looks at on either side of a place, in characters."""
_CANDIDATES = 32
_GROWTH = 16
_SIGNS = r"、。\uff0c\uff01\uff1f\uff1b\uff1a"
"""Between the words of Chinese and Japanese."""
_SPACE = re.compile(rf"(?<=\S)(?=[ {_SIGNS}])|(?<=\n)(?=\S)")


@dataclass(frozen=True, slots=True)
class TextSlice:
    """The tokens of a text from `start` to `stop`. `is_apart`: what follows is tokenized like a
    text of its own; else like what continues a text."""

    start: int
    stop: int
    encoding: Encoding
    is_apart: bool = True


class TextSlicer:
    """Divides a text where that changes no token, and encodes what is between.

    The best places are before a space and behind a line, where the tokenizer treats what is on
    either side as it would treat two texts. Where there is none, a slice that begins with the text
    or behind such a slice ends between two tokens, if those behind are found again when they are
    all that is tokenized: a row of tokens is what byte-pair encoding makes of a text if each two
    neighbours are what it makes of theirs (the crate `bpe` of github.com/github/rust-gems). With
    a unigram model there is no such place.
    """

    def __init__(self, tokenizer: Tokenizer, text: str, *, offsets: bool) -> None:
        """With `offsets` it is also known where the tokens of slices are."""
        self._tokenizer, self._text, self._offsets = tokenizer, text, offsets

    def whole(self) -> TextSlice:
        """All of the text."""
        return self._slice(0, len(self._text))

    def first(self, start: int, stop: int, *, continues: bool) -> TextSlice | None:
        """A slice of what is between two places, from its beginning; `continues` unless that is
        the beginning of the text, or apart from what is before it. None where the text can only
        be tokenized as a whole."""
        part = self._first(start, stop, continues=continues)
        starts = continues and not self._tokenizer.starting_ids.isdisjoint(part.encoding.ids)
        return None if starts else part

    def last(self, stop: int) -> TextSlice | None:
        """A slice of what is before a place, from its end; None where there is no space to divide
        at, as other places are not known from there."""
        most = stop - SLICE_CHARACTERS
        if most <= 0:
            return self._slice(0, stop)
        spaces = [*_SPACE.finditer(self._text, max(most - SLICE_CHARACTERS, 0), most)]
        for space in spaces[: -_CANDIDATES - 1 : -1]:
            if self._divides(space.start()):
                return self._slice(space.start(), stop)
        return None

    def _first(self, start: int, stop: int, *, continues: bool) -> TextSlice:
        least = start + SLICE_CHARACTERS
        if least >= stop:
            return self._slice(start, stop, continues=continues)
        spaces = _SPACE.finditer(self._text, least, min(least + SLICE_CHARACTERS, stop))
        for space in islice(spaces, _CANDIDATES):
            if self._divides(space.start()):
                return self._slice(start, space.start(), continues=continues)
        return self._to_token(start, stop, continues=continues)

    def _slice(self, start: int, stop: int, *, continues: bool = False) -> TextSlice:
        return TextSlice(start, stop, self._encode(start, stop, continues, self._offsets))

    def _encode(
        self, start: int, stop: int, continues: bool = False, offsets: bool = False
    ) -> Encoding:
        (encoding,) = self._tokenizer.encodings(
            [self._text[start:stop]],
            add_special_tokens=False,
            offsets=offsets,
            continues=continues,
        )
        return encoding

    def _divides(self, at: int) -> bool:
        """Whether the two sides of a place are tokenized independently of each other."""
        start, stop = max(at - _CONTEXT, 0), at + _CONTEXT
        both = self._encode(start, stop).ids
        return both == self._encode(start, at).ids + self._encode(at, stop).ids

    def _to_token(self, start: int, stop: int, *, continues: bool) -> TextSlice:
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
                        return TextSlice(start, at, encoding, is_apart=False)
            size *= _GROWTH
        return self._slice(start, stop, continues=continues)

    def _continues_with(self, ids: list[int], at: int) -> bool:
        """Whether what follows a place is tokenized as `ids`, as far as that can be seen."""
        found = self._encode(at, at + 2 * _CONTEXT, continues=True, offsets=True)
        count = sum(stop <= _CONTEXT for _, stop in found.offsets)
        return count > 0 and found.ids[:count] == ids[:count]


def _boundaries(encoding: Encoding, most: int) -> Iterator[tuple[int, int]]:
    """How many tokens, and how many characters, are before each place between two tokens that is
    not behind `most` characters; the last place first. A character of several tokens has none."""
    offsets = encoding.offsets
    for count in range(len(offsets) - 1, 0, -1):
        start = offsets[count][0]
        if 0 < start <= most and offsets[count - 1][1] <= start:
            yield count, start
