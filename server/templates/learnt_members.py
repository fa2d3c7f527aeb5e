"""Learns how a template writes arguments one by one, such as in tags."""

import json
import re
from typing import Any, NamedTuple

from msgspec.structs import replace

from engine_core.turn_format import JSON_TYPES, Members, Value
from server.templates.affixes import common_prefix, common_suffix
from server.templates.turn_writer import FIRST, KEY, LATER_KEY, VALUE, TurnWriter

# A value of each type. Templates may leave out null.
_SAMPLES: dict[str, Any] = {
    "integer": 70717,
    "number": 70717.5,
    "boolean": True,
    "null": None,
    "array": ["zqa", 7],
    "object": {"zqa": "zqb"},
}
_MARKUP = 'zq<b c="d">&zq'


class LearntMembers(NamedTuple):
    """Arguments of a sample call, as they are written, and their format."""

    written: str
    members: Members


def learn_members(writer: TurnWriter, one: str) -> LearntMembers | None:
    """The members of `one`, the turn of a call with KEY and VALUE. None if there are none."""
    two = writer.call(**{KEY: VALUE, LATER_KEY: VALUE})
    place = one.rfind(KEY)
    name = one.rfind(FIRST, 0, place)
    if two is None or min(place, name, two.find(LATER_KEY)) < 0:
        return None
    middle, _, behind = one[place + len(KEY) :].partition(VALUE)
    first, _, _ = two.partition(LATER_KEY)
    _, _, between = first.rpartition(VALUE)
    close = common_prefix(between, behind)
    between = between[len(close) :]
    before = common_suffix(one[name + len(FIRST) : place], between)
    between = between[: len(between) - len(before)]
    written = f"{before}{KEY}{middle}{VALUE}{close}"
    texts = _ValueTexts(writer, one.partition(written), before + KEY)
    values = _values(texts, middle, close)
    if values is None:
        return None
    return LearntMembers(written, Members(before=before, between=between, values=values))


class _ValueTexts:
    """What stands between a key and the end of the arguments."""

    def __init__(self, writer: TurnWriter, around: tuple[str, str, str], key: str) -> None:
        self._writer = writer
        self._before = around[0] + key
        self._behind = around[2]

    def of(self, value: Any) -> str | None:
        """The text for a value. None if it is left out or refused."""
        text = self._writer.call(**{KEY: value})
        if text is None or not (text.startswith(self._before) and text.endswith(self._behind)):
            return None
        return text[len(self._before) : len(text) - len(self._behind)]


class _Form(NamedTuple):
    """The literals around a value, and how it is spelt between them."""

    open: str
    close: str
    spelling: str


def _values(texts: _ValueTexts, middle: str, close: str) -> tuple[Value, ...] | None:
    """The ways of writing values, of which strings stand between `middle` and `close`. None if
    values of a type are written in no known way."""
    number = _form(texts.of(_SAMPLES["integer"]), _SAMPLES["integer"], "")
    if number is None:
        return None
    quote = middle.removeprefix(number.open) if middle != number.open else ""
    if close != quote + number.close:
        quote = ""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, value in _SAMPLES.items():
        form = _form(texts.of(value), value, quote)
        if form is None and value is not None:
            return None
        if form is not None:
            groups.setdefault((form.open, form.close), []).append((name, form.spelling))
    spellings = {spelling for group in groups.values() for _, spelling in group}
    dialect = "gemma" if "gemma" in spellings else "python" if "python" in spellings else "json"
    strings = Value(types=("string",), open=middle, close=close)
    literals = [
        Value(types=tuple(name for name, _ in group), open=around[0], close=around[1],
              dialect=dialect)
        for around, group in groups.items()
    ]  # fmt: skip
    return _with_strings(literals, strings, quote, texts)


def _with_strings(
    literals: list[Value], strings: Value, quote: str, texts: _ValueTexts
) -> tuple[Value, ...]:
    """The literals and the strings, which are literals, too, if they stand in quotes."""
    first, *others = literals
    if not quote and strings.open[-1:] == strings.close[:1] == '"' and not others:
        # All values stand in quotes here. Models know better.
        bare = replace(first, open=strings.open[:-1], close=strings.close[1:])
        return (replace(bare, types=JSON_TYPES),)
    if quote:
        own = "" if quote in "\"'" else quote
        return (replace(first, types=("string", *first.types), quote=own), *others)
    marked = texts.of(_MARKUP)
    before, found, behind = (marked or "").partition(_MARKUP)
    if found and (before, behind) != (strings.open, strings.close):
        return (*literals, strings, replace(strings, open=before, close=behind))
    return (*literals, strings)


def _form(text: str | None, value: Any, quote: str) -> _Form | None:
    """How a text writes a value. None if it does not, in any known way."""
    if text is None:
        return None
    spellings = {"json": [json.dumps(value), json.dumps(value, separators=(",", ":"))]}
    spellings["python"] = [repr(value)]
    if quote:
        keys = re.sub(r'"(\w+)":', r"\1:", json.dumps(value, separators=(",", ":")))
        spellings["gemma"] = [keys.replace('"', quote)]
    for name, ways in spellings.items():
        for spelt in ways:
            before, found, behind = text.rpartition(spelt)
            if found:
                return _Form(before, behind, name)
    return None
