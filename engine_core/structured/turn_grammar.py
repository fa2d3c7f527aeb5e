"""The grammar of sections of calls, from the format of a turn and its tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from engine_core.structured.lark_rules import LarkRules, quoted
from engine_core.structured.schema_tree import GrammarError, as_schema
from engine_core.structured.schema_types import resolved, types_of
from engine_core.turn_format import JSON_TYPES, CallFormat, IdForm, Members, Slot, TurnFormat, Value

_MAX_DEPTH = 6
_TYPES = frozenset(
    "type nullable anyOf oneOf title description default examples deprecated $comment".split()
)
_FOLLOWED = _TYPES.union(
    "enum const properties required items additionalProperties $ref $defs definitions".split()
)
"""Keywords that raw text and a dialect's literals follow, or that restrict nothing. Of choices
they follow the types alone."""


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
        self.unheld: set[str] = set()

    def members(self) -> str:
        between = self._rules.literal(self._form.between)
        if members := self._properties(self._root, quoted, self._member):
            return self._in_order(members, between)
        one = self._rules.rule(self._member("KEY", {}))
        return self._rules.rule(f'{one} ({between} {one})* | ""')

    def _properties(
        self,
        schema: Mapping[str, Any],
        spelt: Callable[[str], str],
        member: Callable[[str, Mapping[str, Any]], str],
    ) -> list[tuple[str, bool]]:
        """A rule for each property, with its key as it is `spelt`, and whether it is required."""
        known = dict(as_schema(schema.get("properties")))
        required = cast("list[str]", schema.get("required") or [])
        for key in required:
            known.setdefault(key, True)
        return [
            (self._rules.rule(member(spelt(key), resolved(each, self._root))), key in required)
            for key, each in known.items()
        ]

    def _in_order(self, items: Sequence[tuple[str, bool]], between: str) -> str:
        """Items, of which some may be left out, with `between` among those that are there."""
        first = rest = self._rules.rule('""')
        for one, needed in reversed(items):
            begun = f"{one} {rest}" + ("" if needed else f" | {first}")
            rest = self._rules.rule(f"{between} {one} {rest}" + ("" if needed else f" | {rest}"))
            first = self._rules.rule(begun)
        return first

    def _member(self, key: str, schema: Mapping[str, Any]) -> str:
        before, types = self._rules.literal(self._form.before), self._types(schema)
        ways: list[str] = []
        for value in self._form.values:
            own = [each for each in types if each in value.types]
            rivals = [each for each in self._form.values if each.open == value.open]
            # Where raw text and a literal begin alike, a value that may be a string is raw.
            if len(rivals) > 1 and "string" in types:
                own = types if value.dialect is None else []
            if own:
                opening = self._rules.literal(value.open.lstrip())
                ways.append(f"{before} {key} {opening} {self._value(value, schema, own)}")
        if not ways:
            raise GrammarError(f"no value of {' or '.join(types)} can be written")
        return " | ".join(ways)

    def _value(self, value: Value, schema: Mapping[str, Any], types: Sequence[str]) -> str:
        close = value.close
        if value.dialect is None and close.strip() and "string" in types:
            return self._raw(close, schema)
        if value.dialect == "json" or (value.dialect is None and close.strip()):
            return f"{self._json(schema, types)} {self._rules.literal(close)}"
        quote = value.quote if value.dialect == "gemma" else ""
        return f"{self._literal(schema, types, quote, 0)} {self._rules.literal(close)}"

    def _raw(self, close: str, schema: Mapping[str, Any]) -> str:
        self._note_unheld(schema)
        texts = _enum(schema)
        if texts and all(isinstance(each, str) for each in texts):
            return f"({' | '.join(map(quoted, texts))}) {self._rules.literal(close)}"
        return self._rules.until(close.strip()) + (" space" if close[-1].isspace() else "")

    def _json(self, schema: Mapping[str, Any], types: Sequence[str]) -> str:
        own = dict(schema) if set(self._types(schema)) <= set(types) else {"type": list(types)}
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return self._rules.json({**shared, **own})

    def _literal(
        self, schema: Mapping[str, Any], types: Sequence[str], quote: str, depth: int
    ) -> str:
        """A value as Python writes it or, with a `quote` around strings, Gemma."""
        if texts := _enum(schema):
            return f"({' | '.join(_constant(each, quote) for each in texts)})"
        self._note_unheld(schema)
        ways = [self._of_type(name, schema, quote, depth) for name in types]
        return self._rules.rule(" | ".join(ways))

    def _of_type(self, name: str, schema: Mapping[str, Any], quote: str, depth: int) -> str:
        if name == "boolean":
            return '"true" | "false"' if quote else '"True" | "False"'
        if name == "null":
            return '"null"' if quote else '"None"'
        if name in ("integer", "number"):
            return name.upper()
        if name == "string":
            return f"{quoted(quote)} {self._rules.until(quote)}" if quote else "QUOTED"
        if depth >= _MAX_DEPTH:
            return '"[]"' if name == "array" else '"{}"'
        if name == "array":
            items = resolved(schema.get("items"), self._root)
            one = self._literal(items, self._types(items), quote, depth + 1)
            return f'"[" ({one} ("," space {one})*)? "]"'
        return f'"{{" {self._object(schema, quote, depth)} "}}"'

    def _object(self, schema: Mapping[str, Any], quote: str, depth: int) -> str:
        def member(key: str, value: Mapping[str, Any]) -> str:
            text = self._literal(value, self._types(value), quote, depth + 1)
            return f'{key} ":" space {text}'

        def spelt(key: str) -> str:
            return quoted(key if quote else json.dumps(key))

        if members := self._properties(schema, spelt, member):
            return self._in_order(members, '"," space')
        plain = {"type": ["string", "number", "boolean", "null"]}
        one = self._rules.rule(member("KEY" if quote else "QUOTED", plain))
        return f'({one} ("," space {one})*)?'

    def _types(self, schema: Mapping[str, Any]) -> list[str]:
        """A schema's types in their order. Numbers include integers."""
        found = types_of(schema, self._root)
        hidden = {"integer"} if "number" in found and not _enum(schema) else set[str]()
        return [each for each in JSON_TYPES if each in found - hidden]

    def _note_unheld(self, schema: Mapping[str, Any]) -> None:
        self.unheld |= schema.keys() - _FOLLOWED
        for word in ("anyOf", "oneOf"):
            choices = [resolved(choice, self._root) for choice in schema.get(word, ())]
            if any(choice.keys() - _TYPES for choice in choices):
                self.unheld.add(word)


def _enum(schema: Mapping[str, Any]) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return cast("list[Any]", values) if isinstance(values, list) else []


def _constant(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quoted(f"{quote}{value}{quote}" if quote else json.dumps(value, ensure_ascii=False))
    if not quote and (value is None or isinstance(value, bool)):
        return quoted(str(value))
    return quoted(json.dumps(value))


def _id(form: IdForm, tool: str) -> str:
    if form == "nine letters":
        return "NINE"
    return "ID" if form == "any" else f"{quoted(f'functions.{tool}:')} INDEX"
