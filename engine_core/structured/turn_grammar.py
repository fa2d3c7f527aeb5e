"""The grammar of sections of calls, from the format of a turn and its tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from engine_core.structured.lark_rules import LarkRules, quoted
from engine_core.structured.schema_tree import GrammarError, as_schema
from engine_core.structured.schema_types import (
    choices_of,
    constants_of,
    type_of_value,
    types_of,
)
from engine_core.turn_format import (
    JSON_TYPES,
    CallFormat,
    IdForm,
    Members,
    Slot,
    TurnFormat,
    Value,
)

_FOLLOWED = frozenset(
    "type enum const properties required items $defs definitions nullable "
    "additionalProperties title description default examples deprecated $comment".split()
)
"""Keywords that raw text and a dialect's literals follow, or that restrict nothing."""
_BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
_OF_TEXT = frozenset({"minLength", "maxLength", "pattern", "format"})
_COUNTS = frozenset({"minItems", "maxItems"})
_MOST_ITEMS = 1 << 20
"""More than any turn has tokens for."""


class CallableTool(NamedTuple):
    """A tool, and the schema of its arguments in llguidance's terms."""

    name: str
    schema: Mapping[str, Any]


class SectionGrammar:
    """The grammar of one of several sections of calls.

    `unheld` are a tool's name and a keyword that the form of its arguments cannot follow.
    """

    def __init__(
        self,
        form: TurnFormat,
        tools: Sequence[CallableTool],
        special: Mapping[str, int],
        *,
        parallel: bool,
    ) -> None:
        """`special` as in LarkRules. Not `parallel`: there is one call."""
        self._form, self._tools, self._parallel = form, tools, parallel
        self._special = special
        self.unheld: list[tuple[str, str]] = []

    def of(self, sections: Sequence[CallFormat]) -> str:
        """One of the sections."""
        self._rules = LarkRules(self._special)
        return self._rules.grammar(self._one_of(sections))

    def of_turn(self, sections: Sequence[CallFormat], text: str) -> str:
        """A turn of calls, or of `text`, the body of a rule. Reasoning may come first."""
        self._rules = LarkRules(self._special)
        ways: list[str] = []
        if sections:
            one = self._one_of(sections)
            repeats = self._parallel and all(each.marker for each in sections)
            ways.append(f"{one} (space {one})*" if repeats else one)
        if text:
            ways.append(self._rules.rule(text))
        turn = f"({' | '.join(ways)})"
        if (markers := self._form.reasoning) is None:
            return self._rules.grammar(turn)
        opened = self._rules.literal(markers.open.strip())
        return self._rules.grammar(
            f"({opened} {self._rules.until(markers.close.strip())} space)? {turn}"
        )

    def _one_of(self, sections: Sequence[CallFormat]) -> str:
        return self._rules.rule(" | ".join(map(self._section, sections)))

    def _section(self, form: CallFormat) -> str:
        literal = self._rules.literal
        call = self._rules.rule(" | ".join(self._call(form, tool) for tool in self._tools))
        repeats = form.many and self._parallel
        again = f"({literal(form.between)} {call})*" if repeats else ""
        opening, closing = literal(form.open.lstrip()), literal(form.close.rstrip())
        return self._rules.rule(f"{opening} {call} {again} {closing}")

    def _call(self, form: CallFormat, tool: CallableTool) -> str:
        *pieces, last = form.call
        if isinstance(last, str) and not form.close:
            last = last.rstrip()
        written = [
            self._rules.literal(each) if isinstance(each, str) else self._slot(each, form, tool)
            for each in (*pieces, last)
        ]
        return self._rules.rule(" ".join(written))

    def _slot(self, slot: Slot, form: CallFormat, tool: CallableTool) -> str:
        if slot.slot == "name":
            return quoted(tool.name)
        if slot.slot == "index":
            return "INDEX"
        if slot.slot == "id":
            return _id(self._form.ids, tool.name)
        if form.members is None:
            return self._rules.json({**tool.schema, "type": "object"})
        writer = _MemberRules(self._rules, form.members, tool.schema)
        expression = writer.members()
        self.unheld += [(tool.name, keyword) for keyword in sorted(writer.unheld)]
        return expression


class _MemberRules:
    """The rules of arguments as members: properties in their order, optional ones perhaps."""

    def __init__(self, rules: LarkRules, members: Members, root: Mapping[str, Any]) -> None:
        self._rules, self._form, self._root = rules, members, root
        self._literals: dict[str, str] = {}
        self.unheld: set[str] = set()

    def members(self) -> str:
        return self._rules.rule(" | ".join(map(self._members, choices_of(self._root, self._root))))

    def _members(self, schema: Mapping[str, Any]) -> str:
        self.unheld |= schema.keys() - _FOLLOWED
        between = self._rules.literal(self._form.between)
        known, required = _known(schema)
        if not known:
            if (others := _others(schema)) is None:
                return '""'
            one = self._rules.rule(self._member("KEY", others))
            return self._rules.rule(f'{one} ({between} {one})* | ""')
        items = [
            (self._rules.rule(self._member(quoted(key), each)), key in required)
            for key, each in known.items()
        ]
        return self._in_order(items, between)

    def _in_order(self, items: Sequence[tuple[str, bool]], between: str) -> str:
        """Items, of which some may be left out, with `between` among those that are there."""
        first = rest = self._rules.rule('""')
        for one, needed in reversed(items):
            begun = f"{one} {rest}" + ("" if needed else f" | {first}")
            rest = self._rules.rule(f"{between} {one} {rest}" + ("" if needed else f" | {rest}"))
            first = self._rules.rule(begun)
        return first

    def _member(self, key: str, schema: Any) -> str:
        before, types = self._rules.literal(self._form.before), self._types(schema)
        ways: list[str] = []
        for value in self._form.values:
            own = [each for each in types if each in value.types]
            rivals = [each for each in self._form.values if each.open == value.open]
            # Where raw text and a literal begin alike, a value that may be a string is raw.
            if len(rivals) > 1 and "string" in types:
                own = types if value.dialect is None else []
            if own:
                # White space around raw text is a part of it.
                literal = self._rules.literal if value.dialect else self._rules.exact
                opening = literal(value.open.lstrip())
                ways.append(f"{before} {key} {opening} {self._value(value, schema, own)}")
        if not ways:
            raise GrammarError(f"no value of {' or '.join(types)} can be written")
        return " | ".join(ways)

    def _value(self, value: Value, schema: Any, types: Sequence[str]) -> str:
        close = value.close
        if value.dialect is None and close.strip() and "string" in types:
            return self._raw(close, schema)
        if value.dialect == "json" or (value.dialect is None and close.strip()):
            return f"{self._json(schema, types)} {self._rules.literal(close)}"
        quote = value.quote if value.dialect == "gemma" else ""
        return f"{self._literal(schema, quote, types)} {self._rules.literal(close)}"

    def _raw(self, close: str, schema: Any) -> str:
        """Any text up to the closer if a string may be any, else constants and JSON."""
        choices, ways = choices_of(schema, self._root), list[str]()
        for choice in choices:
            if constants := constants_of(choice):
                texts = (each if isinstance(each, str) else json.dumps(each) for each in constants)
                ways += map(quoted, texts)
            elif "string" in (types := self._types(choice)):
                self.unheld |= {keyword for each in choices for keyword in each} - _FOLLOWED
                return self._rules.until(close.strip()) + (" space" if close[-1].isspace() else "")
            else:
                ways.append(self._json(choice, types))
        core = close.lstrip()
        edge = self._rules.exact(close.removesuffix(core))
        return f"({' | '.join(ways)}) {edge} {self._rules.literal(core)}"

    def _json(self, schema: Any, types: Sequence[str]) -> str:
        own = as_schema(schema)
        if not set(self._types(schema)) <= set(types):
            own = {**own, "type": list(types)}
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return self._rules.json({**shared, **own})

    def _literal(self, schema: Any, quote: str, types: Sequence[str] = ()) -> str:
        """A value of these types, or any, as Python writes it or, with a `quote` around strings,
        Gemma. Equal schemas share a rule, which may be within itself."""
        key = json.dumps([schema, quote, types])

        def body(name: str) -> str:
            self._literals[key] = name
            return " | ".join(self._ways(schema, quote, types or self._types(schema)))

        return self._literals.get(key) or self._rules.recursive(body)

    def _ways(self, schema: Any, quote: str, types: Sequence[str]) -> Iterator[str]:
        held = _FOLLOWED | _BOUNDS | _COUNTS | (set[str]() if quote else _OF_TEXT)
        for choice in choices_of(schema, self._root):
            if constants := constants_of(choice):
                fit = (each for each in constants if type_of_value(each) & set(types))
                yield from (self._constant(each, quote) for each in fit)
                continue
            self.unheld |= choice.keys() - held
            own = (name for name in self._types(choice) if name in types)
            yield from (self._of_type(name, choice, quote) for name in own)

    def _of_type(self, name: str, schema: Mapping[str, Any], quote: str) -> str:
        if name == "boolean":
            return '"true" | "false"' if quote else '"True" | "False"'
        if name == "null":
            return '"null"' if quote else '"None"'
        if name == "array":
            return f'"[" {self._items(schema, quote)} "]"'
        if name == "object":
            return f'"{{" {self._object(schema, quote)} "}}"'
        if name == "string" and quote:
            return f"{self._rules.literal(quote)} {self._rules.until(quote)}"
        own = schema.keys() & (_OF_TEXT if name == "string" else _BOUNDS)
        if own:  # a number or a string of JSON is one of Python, too
            return self._rules.json({"type": name, **{key: schema[key] for key in own}})
        return "QUOTED" if name == "string" else name.upper()

    def _items(self, schema: Mapping[str, Any], quote: str) -> str:
        one = self._literal(schema.get("items"), quote)
        least, most = min(schema.get("minItems", 0), _MOST_ITEMS), schema.get("maxItems")
        if most == 0:
            return '""'
        counts = f"{max(least - 1, 0)},{'' if most is None else min(most, _MOST_ITEMS) - 1}"
        more = "" if most == 1 else f'("," space {one}){{{counts}}}'
        return f"({one} {more})" + ("" if least else "?")

    def _object(self, schema: Mapping[str, Any], quote: str) -> str:
        def member(key: str, value: Any) -> str:
            return self._rules.rule(f'{key} ":" space {self._literal(value, quote)}')

        known, required = _known(schema)
        if not known:
            if (others := _others(schema)) is None:
                return '""'
            one = member("KEY" if quote else "QUOTED", others)
            return f'({one} ("," space {one})*)?'
        items = [
            (member(quoted(key if quote else json.dumps(key)), each), key in required)
            for key, each in known.items()
        ]
        return self._in_order(items, '"," space')

    def _constant(self, value: Any, quote: str) -> str:
        if isinstance(value, str) and quote:
            around = self._rules.literal(quote)
            return f"{around} {quoted(value)} {around}"
        if not quote and (value is None or isinstance(value, bool)):
            return quoted(str(value))
        return quoted(json.dumps(value, ensure_ascii=False))

    def _types(self, schema: Any) -> list[str]:
        """A schema's types in their order. Numbers include integers."""
        found = types_of(schema, self._root)
        hidden = {"integer"} if "number" in found else set[str]()
        return [each for each in JSON_TYPES if each in found - hidden]


def _known(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The properties that an object may have, in their order, and those that it must."""
    required, others = cast("list[str]", schema.get("required") or []), _others(schema)
    properties = as_schema(schema.get("properties"))
    return {**properties, **{key: others for key in required if key not in properties}}, required


def _others(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of further properties. None if there are none."""
    others = schema.get("additionalProperties", {})
    return None if others is False else as_schema(others)


def _id(form: IdForm, tool: str) -> str:
    if form == "nine letters":
        return "NINE"
    return "ID" if form == "any" else f"{quoted(f'functions.{tool}:')} INDEX"
