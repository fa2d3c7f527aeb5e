"""Stop strings, found in a text that comes in pieces."""

import functools


class StopStrings:
    """Finds the stop string that ends first, of two the longer, in a text that comes in pieces.

    Text that may yet become a stop string is held back, unless stop strings are `included` in the
    text. One Knuth-Morris-Pratt automaton a stop string (SIAM J. Comput. 6(2), 1977) keeps the
    length of its longest prefix that ends the text. A character costs constant amortised time.
    """

    def __init__(self, stops: tuple[str, ...], *, included: bool = False) -> None:
        """No stop string is empty."""
        self._stops = [(stop, _failure_links(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._included = included
        self._held = ""
        self.found = ""  # the one that ends the text

    def push(self, added: str, *, may_end: bool = True) -> str:
        """The text that is now certain to come before any stop string. Without `may_end`, a stop
        string completed in `added` is ordinary text."""
        if not self._stops:
            return added
        text = self._held + added
        for end, char in enumerate(added, start=len(self._held) + 1):
            if (stop := self._advance(char)) and may_end:
                self.found = stop
                self._held = ""
                return text[: end if self._included else end - len(stop)]
        keep = 0 if self._included else max(self._states, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, once nothing can follow it. A new text may begin."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> str:
        """Take one character. Returns the longest stop string that it completes, if any."""
        found = ""
        for index, (stop, links) in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != char:
                state = links[state - 1]
            state += stop[state] == char
            if state == len(stop):
                found = max(found, stop, key=len)
                state = links[state - 1]
            self._states[index] = state
        return found


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
