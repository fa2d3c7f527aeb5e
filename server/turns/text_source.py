"""Text that arrives in pieces, read as if it were whole.

Methods that need text are generators: each yields when it has to wait for more, so that what they
return depends on the text alone, never on its cuts.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Returns a T, and yields each time more text is needed."""

_WORDS = re.compile(r"\s+|\S+")


class TextSource:
    """Unread text, of which a reader may take back what it has read since a mark."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._ended = False
        self.ran_out = False  # something was looked for that the end of the text cut

    def add(self, text: str) -> None:
        """Append text, and forget what has been read."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        self._mark = None if self._mark is None else 0

    def end(self) -> None:
        """No more text comes."""
        self._ended = True

    @property
    def rest(self) -> str:
        """The text that has come and is unread."""
        return self._text[self._at :]

    def mark(self) -> None:
        """Keep the text from here on, for `back`."""
        self._mark = self._at

    def unmark(self) -> None:
        self._mark = None

    def back(self) -> None:
        """Return to the mark."""
        assert self._mark is not None
        self._at, self._mark = self._mark, None

    def char(self) -> Waiting[str]:
        """The next character, unread. Empty at the end."""
        yield from self._await(0)
        return self._text[self._at : self._at + 1]

    def take(self, count: int) -> str:
        """Read characters that are known to be there."""
        taken = self._text[self._at : self._at + count]
        self._at += count
        return taken

    def space(self) -> Waiting[None]:
        """Read white space."""
        offset = yield from self._after_space(0)
        self._at += offset

    def has(self, literal: str, offset: int = 0) -> Waiting[bool]:
        """True if exactly this text comes next, unread."""
        while True:
            there = self._text[self._at + offset : self._at + offset + len(literal)]
            if len(there) == len(literal) or not literal.startswith(there):
                return there == literal
            if self._ended:
                self.ran_out = True
                return False
            yield

    def takes(self, literal: str) -> Waiting[bool]:
        """Read a literal whose white space stands for any. Nothing is read where it is not."""
        offset = 0
        for word in _WORDS.findall(literal):
            if word.isspace():
                offset = yield from self._after_space(offset)
            elif (yield from self.has(word, offset)):
                offset += len(word)
            else:
                return False
        self._at += offset
        return True

    def until(self, markers: Sequence[str], say: Callable[[str], None]) -> Waiting[str]:
        """Read up to the first of the markers, the longest there, and through it; say the text
        before. Returns the marker, or an empty string at the end of all text."""
        while True:
            place, marker, waits = self._first(markers)
            if place > self._at:
                say(self._text[self._at : place])
                self._at = place
            if marker and not waits:
                self._at += len(marker)
                return marker
            if self._ended:
                self.ran_out = True
                return ""
            yield

    def upto(self, markers: Sequence[str]) -> Waiting[str | None]:
        """Read the text before the first of the markers. None, and nothing read, without any."""
        while True:
            place, marker, waits = self._first(markers)
            if marker and not waits:
                return self.take(place - self._at)
            if self._ended:
                self.ran_out = True
                return None
            yield

    def _first(self, markers: Sequence[str]) -> tuple[int, str, bool]:
        """The end of text that is before any marker, the marker there, and whether a longer one
        may yet stand there."""
        text, end = self._text, len(self._text)
        place, marker, waits = end, "", False
        for each in markers:
            found = text.find(each, self._at)
            if found >= 0 and (found, -len(each)) < (place, -len(marker)):
                place, marker, waits = found, each, False
        if not self._ended:
            for each in markers:
                begun = _begun(text, each, max(self._at, end - len(each) + 1))
                if begun < place or begun == place < end:
                    place, waits = begun, True
        return place, marker, waits

    def _after_space(self, offset: int) -> Waiting[int]:
        while True:
            yield from self._await(offset)
            if not self._text[self._at + offset : self._at + offset + 1].isspace():
                return offset
            offset += 1

    def _await(self, offset: int) -> Waiting[None]:
        while self._at + offset >= len(self._text):
            if self._ended:
                self.ran_out = True
                return
            yield


def _begun(text: str, marker: str, start: int) -> int:
    """The first place from `start` on where the text ends within the marker; its end if none."""
    for place in range(start, len(text)):
        if marker.startswith(text[place:]):
            return place
    return len(text)
