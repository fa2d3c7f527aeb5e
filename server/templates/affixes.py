"""What two texts have in common at their ends, in whole markers such as `<tool_call>`."""

import re
from itertools import takewhile

# Also of several parts: `<|open|>think<|sep|>`.
_MARKER = re.compile(r"<[^<>]*>(?:[^<>\s]+<\|sep\|>)?|<[^<>]*$|\[[A-Z_ /]+\]")


def common_prefix(one: str, other: str) -> str:
    """The longest common prefix that ends within no marker of either."""
    return _cut_before(one, other, _shared(one, other))


def common_suffix(one: str, other: str) -> str:
    """The longest common suffix that begins within no marker of either."""
    length = _shared(one[::-1], other[::-1])
    return one[len(one) - whole_suffix(one, other, length) :]


def _shared(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def whole_suffix(one: str, other: str, length: int) -> int:
    """The length of a common suffix, without the part of a marker that it begins with."""
    while True:
        ends = [
            match.end() - (len(text) - length)
            for text in (one, other)
            for match in _MARKER.finditer(text)
            if match.start() < len(text) - length < match.end()
        ]
        if not ends:
            return length
        length -= max(ends)


def _cut_before(one: str, other: str, length: int) -> str:
    while True:
        starts = [
            match.start()
            for text in (one, other)
            for match in _MARKER.finditer(text)
            if match.start() < length < match.end()
        ]
        if not starts:
            return one[:length]
        length = min(starts)


def last_marker(text: str) -> str:
    """The marker that a text ends with, but for white space. Empty without one."""
    *_, last = [None, *_MARKER.finditer(text.rstrip())]
    return last[0] if last and last.end() == len(text.rstrip()) else ""


def first_marker(text: str) -> str:
    """The marker that a text begins with. Empty without one."""
    found = _MARKER.match(text)
    return found[0] if found else ""
