"""The arguments of a call, read into JSON."""

import json
from collections.abc import Callable, Mapping, Set
from typing import Any

from engine_core.structured.schema_types import types_of_member
from engine_core.turn_format import Members, Value
from server.turns.literals import LiteralReader, NotALiteralError, value_of
from server.turns.text_source import TextSource, Waiting

Say = Callable[[str], None]
Types = Set[str]


def read_json(source: TextSource, say: Say) -> Waiting[bool]:
    """Read a JSON object, as it is. True if it is one."""
    pieces: list[str] = []

    def both(text: str) -> None:
        pieces.append(text)
        say(text)

    yield from source.space()
    if (yield from source.char()) != "{":
        return False
    yield from copy_json(source, both)
    return is_object("".join(pieces))


def is_object(text: str) -> bool:
    """True for the text of a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def copy_json(source: TextSource, say: Say) -> Waiting[None]:
    """Read a JSON value up to where its brackets are balanced, or a word ends."""
    depth = 0
    while char := (yield from source.char()):
        if char == '"':
            yield from _copy_string(source, say)
        elif depth == 0 and char in ",}] \t\r\n":
            return
        else:
            depth += (char in "{[") - (char in "}]")
            say(source.take(1))
        if depth == 0 and char in '"}]':
            return


def _copy_string(source: TextSource, say: Say) -> Waiting[None]:
    say(source.take(1))
    while found := (yield from source.until(('"', "\\"), say)):
        say(found)
        if found == '"':
            return
        yield from source.char()
        say(source.take(1))


class MemberReader:
    """Reads arguments that stand as members, up to the text `after` them."""

    def __init__(
        self, source: TextSource, members: Members, after: str, schema: Mapping[str, Any]
    ) -> None:
        self._source = source
        self._members = members
        self._after = after
        self._schema = schema
        # The longest first: it may begin with others.
        self._values = sorted(members.values, key=lambda value: -len(value.open))

    def read(self, say: Say) -> Waiting[bool]:
        """Say the JSON object of the members. True if they are whole."""
        say("{")
        first = True
        while not (yield from self._source.takes("\n" + self._after)):
            took = first or (yield from self._source.takes("\n" + self._members.between))
            took = took and (yield from self._source.takes("\n" + self._members.before))
            if not (took and (yield from self._member(say, first))):
                yield from self._skip()
                return False
            first = False
        say("}")
        return True

    def _skip(self) -> Waiting[None]:
        """Read what is no member, up to the end of the arguments."""
        first = _first_word(self._after)
        yield from self._source.until((first,), lambda _: None)
        yield from self._source.takes(self._after.strip().removeprefix(first))

    def _member(self, say: Say, first: bool) -> Waiting[bool]:
        opens = [_first_word(value.open) for value in self._values]
        key = yield from self._source.upto((*opens, _first_word(self._after)))
        if not key:
            return False
        key = key.strip()
        for value in self._values:
            if (yield from self._source.takes(value.open.rstrip())):
                say(("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
                return (yield from self._value(value, types_of_member(self._schema, key), say))
        return False

    def _value(self, value: Value, types: Types, say: Say) -> Waiting[bool]:
        shared = [other for other in self._values if other.open == value.open]
        raw = next((each for each in shared if each.dialect is None), None)
        if raw is None:
            return (yield from self._literal(value, types, say))
        if not raw.close.strip():
            return (yield from self._unclosed(raw, types, say))
        if set(raw.types) == {"string"} and len(shared) == 1:
            types = {"string"}
        return (yield from self._raw(raw, types, say))

    def _literal(self, value: Value, types: Types, say: Say) -> Waiting[bool]:
        try:
            found = yield from LiteralReader(self._source, value.quote).value()
        except NotALiteralError:
            return False
        if isinstance(found, str) and "string" not in types:
            found = value_of(found, types)
        say(json.dumps(found, ensure_ascii=False))
        return (yield from self._source.takes("\n" + value.close))

    def _raw(self, value: Value, types: Types, say: Say) -> Waiting[bool]:
        """Read raw text up to its closer. A string is said as it comes."""
        edge = value.open[len(value.open.rstrip()) :]
        if edge and (yield from self._source.has(edge)):
            self._source.take(len(edge))
        core = value.close.strip()
        edge = value.close[: len(value.close) - len(value.close.lstrip())]
        closers = (edge + core, core)
        if types == {"string"}:
            say('"')
            found = yield from self._source.until(closers, lambda text: say(_escaped(text)))
            say('"')
            return bool(found)
        pieces: list[str] = []
        found = yield from self._source.until(closers, pieces.append)
        say(json.dumps(value_of("".join(pieces), types), ensure_ascii=False))
        return bool(found)

    def _unclosed(self, value: Value, types: Types, say: Say) -> Waiting[bool]:
        """Read a literal that shows as such, or raw text up to what comes next."""
        yield from self._source.space()
        char = yield from self._source.char()
        quotes = "\"'" if types == {"string"} else "\"'[{"
        if char and char in quotes:
            return (yield from self._literal(value, types, say))
        ends = (_first_word(self._members.between), _first_word(self._after))
        text = yield from self._source.upto(ends)
        if text is not None:
            say(json.dumps(value_of(text.strip(), types), ensure_ascii=False))
        return text is not None


def _first_word(literal: str) -> str:
    return next(iter(literal.split(maxsplit=1)), literal)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
