"""Calls of tools as their format has them, for templates that do not write them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine_core.structured.schema_types import type_of_value
from engine_core.turn_format import CallFormat, Members, Value


class WrittenCall(NamedTuple):
    """A call, whose arguments are in the text of the format."""

    name: str
    arguments: str
    id: str


def written_calls(form: CallFormat, calls: Sequence[WrittenCall]) -> str:
    """The text of some calls."""
    texts = [_call(form, call, number) for number, call in enumerate(calls, form.starts_from)]
    if form.many:
        texts = [(form.between or "\n").join(texts)]
    return "\n".join(form.open + text + form.close for text in texts)


def _call(form: CallFormat, call: WrittenCall, number: int) -> str:
    slots = {"name": call.name, "arguments": call.arguments, "id": call.id, "index": str(number)}
    return "".join(
        piece if isinstance(piece, str) else slots[piece.slot] for piece in form.call
    ).strip()


def written_arguments(form: CallFormat, arguments: Mapping[str, Any]) -> str:
    """The text of a call's arguments."""
    members = form.members
    if members is None:
        return json.dumps(arguments, ensure_ascii=False)
    return members.between.join(_member(members, *each) for each in arguments.items())


def _member(members: Members, key: str, value: Any) -> str:
    kinds = type_of_value(value)
    how = next((each for each in members.values if kinds & {*each.types}), members.values[0])
    return members.before + key + how.open + _text(how, value) + how.close


def _text(how: Value, value: Any) -> str:
    if how.dialect is None and isinstance(value, str):
        return value if how.close else repr(value)
    # Python's literals can be read in every dialect but JSON's.
    json_like = how.dialect in (None, "json")
    return json.dumps(value, ensure_ascii=False) if json_like else repr(value)


def example_call(form: CallFormat) -> str:
    """A call with words for its parts, to show to a model."""
    arguments = "<args-json-object>"
    if form.members is not None:
        how = form.members.values[0]
        arguments = f"{form.members.before}<argument-name>{how.open}<value>{how.close}"
    return written_calls(form, [WrittenCall("<function-name>", arguments, "<id>")])
