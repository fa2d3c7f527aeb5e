"""A long text, tokenized slice by slice, and not further than its tokens are of use."""

import re
from collections.abc import Iterator
from itertools import islice

from tokenizers import Encoding

from engine_core.tokenization.tokenizer import Tokenizer

SLICE_CHARACTERS = 64 * 1024
"""No text of so many is tokenized in parts."""
_CONTEXT = 128
"""What a tokenizer looks at on either side of a place, in characters."""
_CANDIDATES = 8
_SIGNS = r"、。\uff0c\uff01\uff1f\uff1b\uff1a"
"""Between the words of Chinese and Japanese."""
_FORWARD = re.compile(rf"(?<=\S)(?=[ {_SIGNS}])|(?<=\n)(?=\S)")
_BACKWARD = re.compile(rf"(?<=[ {_SIGNS}])(?=\S)|(?<=\S)(?=\n)")


class SlicedText:
    """The tokens of a text, those of its beginning first, or those of its end.

    They are those of the whole text: one slice ends and the next begins before a space or behind a
    line, where the tokenizer treats what is on either side as it would treat two texts. Where it
    never does, there is one slice.
    """

    def __init__(
        self, tokenizer: Tokenizer, text: str, *, from_end: bool = False, offsets: bool = False
    ) -> None:
        """With `offsets` it is also known where the tokens are."""
        self._encode = tokenizer.raw.encode_batch if offsets else tokenizer.raw.encode_batch_fast
        self._text = text
        self._from_end = from_end
        self._searched = text[::-1] if from_end else text
        self._taken = 0
        self._starts: list[int] = []
        self._slices: list[Encoding] = []
        self.num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether all of the text is tokenized."""
        return bool(self._slices) and self._taken == len(self._text)

    def take(self) -> int:
        """Tokenize one slice more, and return how many characters it had."""
        start, self._taken = self._taken, self._end()
        part = slice(start, self._taken)
        if self._from_end:
            part = slice(len(self._text) - self._taken, len(self._text) - start)
        (encoding,) = self._encode([self._text[part]], add_special_tokens=False)
        self._starts.append(part.start)
        self._slices.append(encoding)
        self.num_tokens += len(encoding.ids)
        return self._taken - start

    def merged(self) -> Encoding:
        """What is tokenized so far, as one text without special tokens."""
        slices = reversed(self._slices) if self._from_end else self._slices
        return Encoding.merge(list(slices), growing_offsets=False)

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Where each token of a text that was not taken from its end begins and ends in it."""
        for base, encoding in zip(self._starts, self._slices, strict=True):
            for start, stop in encoding.offsets:
                yield base + start, base + stop

    def _end(self) -> int:
        """How much is taken after the next slice."""
        least = self._taken + SLICE_CHARACTERS
        places = (_BACKWARD if self._from_end else _FORWARD).finditer(self._searched, least)
        for place in islice(places, _CANDIDATES):
            if self._divides(place.start()):
                return place.start()
        return len(self._text)

    def _divides(self, taken: int) -> bool:
        """Whether the two sides of a place are tokenized independently of each other."""
        at = len(self._text) - taken if self._from_end else taken
        left, right = self._text[max(at - _CONTEXT, 0) : at], self._text[at : at + _CONTEXT]
        both, first, second = self._encode([left + right, left, right], add_special_tokens=False)
        return both.ids == first.ids + second.ids
