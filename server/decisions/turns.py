"""From a request's input to a conversation's turns, and from contents to texts."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from server.errors import quoted
from server.schemas.common import invalid
from server.schemas.decisions import InputItem, JsonData, TextPart

ItemT = TypeVar("ItemT")
_Fields = dict[str, tuple[str, ...]]
"""The fields that each type must have. It must not have those of other types."""

_OF_ITEMS: _Fields = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
_OF_PARTS: _Fields = {
    "input_text": ("text",),
    "input_json": ("data",),
    "output_text": ("text",),
    "refusal": ("refusal",),
}
TEXT_PARTS, USER_PARTS = ("input_text",), ("input_text", "input_json")
_PARTS = {
    "user": USER_PARTS,
    "developer": TEXT_PARTS,
    "system": TEXT_PARTS,
    "assistant": ("output_text", "refusal"),
}
_MAX_LEVELS, _MAX_VALUES, _MAX_BYTES = 32, 10_000, 256 << 10
_AT_ONCE = 1024
"""Items and parts to read before others have a turn: a body may hold 100,000s."""


class Turn(msgspec.Struct):
    """Neighbouring messages of one role. `field` is that of the first."""

    role: str
    field: str
    texts: list[str]


async def turns_of(given: str | list[InputItem]) -> list[Turn]:
    """The turns of an input. Tool calls and their outputs are the user's text, a line of JSON each.
    Raises RefusalError, naming the field."""
    if isinstance(given, str):
        return [Turn("user", "input", [given])]
    turns: list[Turn] = []
    calls = {f"{item.type} {item.call_id}" for item in given}
    async for number, item in _taken(given):
        field = f"input[{number}]"
        role, text = await _read(item, field, calls)
        if not turns or turns[-1].role != role:
            turns.append(Turn(role, field, []))
        turns[-1].texts.append(text)
    return turns


def joined(texts: Iterable[str]) -> str:
    """The texts that are not empty, with a blank line between two."""
    return "\n\n".join(filter(None, texts))


def written(value: Any, field: str) -> str:
    """A text as it is, any other JSON compactly. Raises RefusalError if it is nested too deeply."""
    if isinstance(value, str):
        return value
    try:
        return _as_json(value)
    except RecursionError:
        raise invalid(field, "is nested too deeply") from None


async def text_of(content: str | Sequence[TextPart], field: str, kinds: tuple[str, ...]) -> str:
    """The text of a content, or its parts, which are of these kinds, one on a line. Raises
    RefusalError, naming the part, or a field of it."""
    if isinstance(content, str):
        return content
    parts = _taken(content)
    return "\n".join([_text(part, f"{field}[{number}]", kinds) async for number, part in parts])


async def _taken(items: Sequence[ItemT]) -> AsyncGenerator[tuple[int, ItemT]]:
    """Yield the items, numbered, with other requests in between."""
    for number, item in enumerate(items):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        yield number, item


async def _read(item: InputItem, field: str, calls: set[str]) -> tuple[str, str]:
    """An item's role and text. `calls` are the types and ids of all items."""
    kind = item.type or "message"
    _check_fields(item, kind, _OF_ITEMS, field)
    if item.role is not None and item.content is not None:
        return item.role, await text_of(item.content, f"{field}.content", _PARTS[item.role])
    written = {"type": kind} | {name: getattr(item, name) for name in _OF_ITEMS[kind]}
    if item.output is not None:
        of_call = kind.removesuffix("_output")
        if f"{of_call} {item.call_id}" not in calls:
            raise invalid(f"{field}.call_id", f"no {of_call} has it")
        written["output"] = await text_of(item.output, f"{field}.output", TEXT_PARTS)
    return "user", _as_json(written)


def _text(part: TextPart, field: str, kinds: tuple[str, ...]) -> str:
    if part.type not in kinds:
        served = " and ".join(map(repr, kinds))
        reason = f"parts of type {quoted(part.type)} are not served here, only {served}"
        raise invalid(field, reason)
    _check_fields(part, part.type, _OF_PARTS, field)
    (name,) = _OF_PARTS[part.type]
    value: str | JsonData = getattr(part, name)
    return value if isinstance(value, str) else _checked_json(value, f"{field}.{name}")


def _check_fields(item: InputItem | TextPart, kind: str, fields: _Fields, path: str) -> None:
    own = fields[kind]
    for name in {name: None for names in fields.values() for name in names}:
        if (name in own) != (getattr(item, name, None) is not None):
            reason = "is required" if name in own else f"is not for type {kind}: leave it out"
            raise invalid(f"{path}.{name}", reason)


def _checked_json(data: JsonData, field: str) -> str:
    """The data as compact JSON. Raises RefusalError for too many levels, values or bytes."""
    levels = values = 0
    found: list[Any] = [data]
    while found:
        values += len(found)
        levels += any(isinstance(value, dict | list) for value in found)
        if levels > _MAX_LEVELS or values > _MAX_VALUES:
            raise invalid(field, f"JSON has at most {_MAX_LEVELS} levels and {_MAX_VALUES} values")
        found = [inner for value in found for inner in _values_in(value)]
    text = _as_json(data)
    if (size := len(text.encode())) > _MAX_BYTES:
        raise invalid(field, f"JSON has at most {_MAX_BYTES} bytes, and this has {size}")
    return text


def _values_in(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _as_json(data: object) -> str:
    return msgspec.json.encode(data).decode()
