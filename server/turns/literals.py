"""Values of arguments as formats write them: JSON, Python's literals, and what lies between."""

import json
import re
import sys
from collections.abc import Set
from typing import Any, NoReturn

from engine_core.structured.schema_types import type_of_value
from server.turns.text_source import TextSource, Waiting

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_MAX_DEPTH = 64
_MAX_FLOAT = sys.float_info.max


class NotALiteralError(Exception):
    """A text is no value."""


class LiteralReader:
    """Reads values from a source. Keys may stand without quotes, strings also in single quotes or
    in the format's own `quote`, within which nothing is escaped."""

    def __init__(self, source: TextSource, quote: str = "") -> None:
        self._source = source
        self._quote = quote

    def value(self, depth: int = 0) -> Waiting[Any]:
        """Read a value. Raises NotALiteralError."""
        yield from self._source.space()
        char = yield from self._source.char()
        if depth > _MAX_DEPTH:
            raise NotALiteralError
        if self._quote and (yield from self._source.has(self._quote)):
            return (yield from self._own_string())
        if char and char in "\"'":
            return (yield from self._string())
        if char == "{":
            return (yield from self._object(depth))
        if char == "[":
            return (yield from self._array(depth))
        return _constant((yield from self._word()))

    def _object(self, depth: int) -> Waiting[dict[str, Any]]:
        members: dict[str, Any] = {}
        self._source.take(1)
        while not (yield from self._source.takes(" }")):
            if members and not (yield from self._source.takes(" ,")):
                raise NotALiteralError
            yield from self._source.space()
            char = yield from self._source.char()
            quoted = bool(char) and char in "\"'" + self._quote[:1]
            reading = self.value(depth + 1) if quoted else self._source.upto((":",))
            key = yield from reading
            if not isinstance(key, str) or not (yield from self._source.takes(" :")):
                raise NotALiteralError
            members[key if quoted else key.strip()] = yield from self.value(depth + 1)
        return members

    def _array(self, depth: int) -> Waiting[list[Any]]:
        items: list[Any] = []
        self._source.take(1)
        while not (yield from self._source.takes(" ]")):
            if items and not (yield from self._source.takes(" ,")):
                raise NotALiteralError
            items.append((yield from self.value(depth + 1)))
        return items

    def _own_string(self) -> Waiting[str]:
        self._source.take(len(self._quote))
        pieces: list[str] = []
        if not (yield from self._source.until((self._quote,), pieces.append)):
            raise NotALiteralError
        return "".join(pieces)

    def _string(self) -> Waiting[str]:
        quote = self._source.take(1)
        pieces: list[str] = []
        while found := (yield from self._source.until((quote, "\\"), pieces.append)):
            if found == quote:
                text = "".join(pieces)
                # Two escapes may be one character, and one of such two is none.
                units = _ESCAPE.sub(_unescaped, text).encode("utf-16", "surrogatepass")
                return units.decode("utf-16", "replace")
            yield from self._source.char()
            pieces.append("\\" + self._source.take(1))
        raise NotALiteralError

    def _word(self) -> Waiting[str]:
        word = ""
        while (char := (yield from self._source.char())) and char not in " \t\r\n,:()[]{}<>'\"":
            word += self._source.take(1)
        return word


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)


def _constant(word: str) -> Any:
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    try:
        return json.loads(word, parse_float=_finite, parse_constant=_refused)
    except ValueError:
        raise NotALiteralError from None


def _finite(text: str) -> float:
    """The nearest number that there is. A schema's grammar has larger ones, JSON no infinity."""
    return max(-_MAX_FLOAT, min(_MAX_FLOAT, float(text)))


def _refused(word: str) -> NoReturn:
    raise ValueError(word)  # NaN, or an infinity


def value_of(text: str, types: Set[str]) -> Any:
    """The value of a raw text: the types that it may have say whether it is a string."""
    if types == {"string"}:
        return text
    source = TextSource()
    source.add(text)
    source.end()
    try:
        next(LiteralReader(source).value())
    except StopIteration as end:
        value: Any = end.value
        if not (source.rest.strip() or isinstance(value, str)) and type_of_value(value) & types:
            return value
    except NotALiteralError:
        pass
    return text
