"""The format that a checkpoint declares in `response_template` (transformers 5.13).

That is a parser's program: regions of text between literals or patterns, each with a way to read
it. Those that a format can be made of are read here: patterns of literals, white space, and groups
of a name, a key and a value.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from engine_core.turn_format import (
    JSON_TYPES,
    CallFormat,
    Members,
    Reasoning,
    Slot,
    TurnFormat,
    Value,
)

_REASONING = ("reasoning_content", "reasoning", "thinking")
_PART = re.compile(
    r"\(\?P<(?P<group>\w+)>(?:[^()\\\[]|\\.|\[(?:[^\]\\]|\\.)*\])*\)"
    r"|(?P<space>(?:\\s|\\n|\n)[*+?]?)"
    r"|\\(?P<escaped>[^\w\s])"
    r"|(?P<literal>[^\\()\[\]{}*+?.|^$])"
)
_END = re.compile(r"\|\$$|\$$")


class NotDeclaredError(Exception):
    """A declaration is none that a format can be made of, for this reason."""


def declared_format(response_template: Mapping[str, Any]) -> TurnFormat:
    """The format of a `response_template`. Raises NotDeclaredError."""
    try:
        fields: dict[str, dict[str, Any]] = response_template["fields"]
        thought = next((fields[name] for name in _REASONING if name in fields), None)
        content, calls = fields.get("content", {}), fields.get("tool_calls")
        return TurnFormat(
            reasoning=_reasoning(thought) if thought else None,
            text_markers=tuple(filter(None, (_edge(content, "open"), _edge(content, "close")))),
            calls=(_calls(calls),) if calls else (),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NotDeclaredError(f"it has another structure: {error!r}") from None


def _reasoning(field: Mapping[str, Any]) -> Reasoning:
    return Reasoning(open=_edge(field, "open"), close=_edge(field, "close"))


def _edge(field: Mapping[str, Any], side: str) -> str:
    """The literal that opens or closes a region. Empty without one."""
    if literal := field.get(side):
        return str(literal if isinstance(literal, str) else literal[0]).strip()
    pieces = _pieces(field.get(f"{side}_pattern", ""))
    if not all(isinstance(piece, str) for piece in pieces):
        raise NotDeclaredError(f"its {side}_pattern has groups")
    return "".join(cast(tuple[str, ...], pieces)).strip()


def _pieces(pattern: str) -> tuple[str | Slot, ...]:
    """The literals of a pattern, and its groups as slots. Raises NotDeclaredError."""
    pattern = _END.sub("", pattern)
    pieces: list[str | Slot] = []
    place = 0
    while place < len(pattern):
        part = _PART.match(pattern, place)
        if part is None:
            raise NotDeclaredError(f"the pattern {pattern!r} is none of literals and groups")
        place = part.end()
        if group := part["group"]:
            pieces.append(Slot(cast(Any, group)))
            continue
        literal = "\n" if part["space"] else part["escaped"] or part["literal"]
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += literal
        else:
            pieces.append(literal)
    return tuple(pieces)


def _calls(field: Mapping[str, Any]) -> CallFormat:
    opening = (field["open"],) if field.get("open") else _pieces(field["open_pattern"])
    close = _edge(field, "close")
    arguments = field.get("content_args", {})
    if field.get("transform_each") or not field.get("transform"):
        raise NotDeclaredError("it has several calls in one region")
    function = field["transform"]["function"]
    if field.get("content") == "xml-inline":
        members = _members(arguments["tag_pattern"])
        return CallFormat(call=(*opening, Slot("arguments"), close), members=members)
    if field.get("content") != "json":
        raise NotDeclaredError(f"it has calls as {field.get('content')}")
    if arguments.get("unquoted_keys"):
        return _unquoted(opening, arguments, close)
    if function == "{content}":
        keys = ("name", "arguments")
    elif function["arguments"] == "{content}":
        return CallFormat(call=(*opening, Slot("arguments"), close))
    else:
        keys = tuple(function[key].strip("{}").rpartition(".")[2] for key in ("name", "arguments"))
    envelope = (f'{{"{keys[0]}": "', Slot("name"), f'", "{keys[1]}": ', Slot("arguments"), "}")
    first = f"{opening[0]}\n{envelope[0]}"
    return CallFormat(call=(first, *envelope[1:4], f"}}\n{close}"))


def _members(pattern: str) -> Members:
    before, key, middle, value, behind = _pieces(pattern)
    if not (key == Slot(cast(Any, "key")) and value == Slot(cast(Any, "value"))):
        raise NotDeclaredError("its tag_pattern has no key before its value")
    return Members(
        before=str(before), values=(Value(types=JSON_TYPES, open=str(middle), close=str(behind)),)
    )


def _unquoted(
    opening: tuple[str | Slot, ...], arguments: Mapping[str, Any], close: str
) -> CallFormat:
    """Arguments of which keys have no quotes, and strings their own."""
    quote: str = (arguments.get("string_delims") or [["", ""]])[0][0]
    value = Value(types=JSON_TYPES, open=":", dialect="gemma", quote=quote)
    return CallFormat(
        call=(*opening, "{", Slot("arguments"), f"}}{close}"),
        members=Members(between=",", values=(value,)),
    )
