"""From token ids to text as it becomes certain."""

import codecs
import functools

from engine_core.tokenization.token_bytes import REPLACEMENT, TextBytes
from engine_core.tokenization.tokenizer import Tokenizer

# Enough of the prompt to know whether a text has begun, and with it a character.
CONTEXT_TOKENS = 8


class Detokenizer:
    """Incremental text of one row: its parts together are what decoding all ids would add.

    `context` is the tail of the prompt. A part is empty while a character is incomplete; a
    character that is incomplete at the end is left out. Bytes that are not UTF-8 become U+FFFD, as
    many as Python's decoder writes, and the text goes on behind them.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._bytes = TextBytes(tokenizer.token_bytes, skip_special_tokens=skip_special_tokens)
        self._pending = b""  # of an incomplete character
        self._decoded(b"".join(map(self._bytes.next, context)))

    def step(self, token: int) -> str:
        """The text that `token` makes certain."""
        return self._decoded(self._bytes.next(token))

    def _decoded(self, data: bytes) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text


def finished_text(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> str:
    """The text of `ids` without the beginning of a character at its end."""
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    if not text.endswith(REPLACEMENT):
        return text
    data = tokenizer.token_bytes.joined(ids, skip_special_tokens=skip_special_tokens)
    return codecs.utf_8_decode(data, "replace", False)[0]


class StopStrings:
    """Finds the first stop string in a text that comes in parts, however it is split.

    The first is the one that ends first; if two end at the same character, the longer. Text that
    may yet become a stop string is held back, unless stop strings are `included` in the text. One
    Knuth-Morris-Pratt automaton a stop string (SIAM J. Comput. 6(2), 1977): its state is the length
    of its longest prefix that ends the text, so a character costs constant amortised time, whatever
    the lengths.
    """

    def __init__(self, stops: tuple[str, ...], *, included: bool = False) -> None:
        """No stop string is empty."""
        self._stops = [(stop, _failure_links(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._included = included
        self._held = ""
        self.found = False

    def push(self, added: str, *, may_end: bool = True) -> str:
        """The text that is now certain to come before any stop string. With `may_end` False, a stop
        string completed in `added` is ordinary text."""
        text = self._held + added
        for end, char in enumerate(added, start=len(self._held) + 1):
            if (matched := self._advance(char)) and may_end:
                self.found = True
                self._held = ""
                return text[: end if self._included else end - matched]
        keep = 0 if self._included else max(self._states, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, once nothing can follow it."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Take one character; the length of the longest stop string that it completes, or 0."""
        matched = 0
        for index, (stop, links) in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != char:
                state = links[state - 1]
            state += stop[state] == char
            if state == len(stop):
                matched = max(matched, state)
                state = links[state - 1]
            self._states[index] = state
        return matched


@functools.lru_cache(maxsize=256)
def _failure_links(pattern: str) -> tuple[int, ...]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    links = [0] * len(pattern)
    length = 0
    for position in range(1, len(pattern)):
        while length and pattern[position] != pattern[length]:
            length = links[length - 1]
        length += pattern[position] == pattern[length]
        links[position] = length
    return tuple(links)
