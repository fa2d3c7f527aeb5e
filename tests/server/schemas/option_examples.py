"""A value of each known option that is not neutral, and what a request needs for it to matter."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


class OptionExample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`beside` holds the fields without which `example` has no effect."""

    example: Any
    beside: dict[str, Any] = {}


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: list[str]
    beside: dict[str, Any] = {}
    obeyed: dict[str, OptionExample] = {}
    refused: dict[str, OptionExample] = {}
    accepted: dict[str, OptionExample] = {}


class _Examples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: list[_Group]


@cache
def examples_of(request: str) -> dict[str, OptionExample]:
    """The examples of one type of request by the dotted path of the option."""
    text = Path(__file__).with_name("option_examples.toml").read_bytes()
    return {
        name: OptionExample(row.example, row.beside or group.beside)
        for group in msgspec.toml.decode(text, type=_Examples).groups
        if request in group.requests
        for name, row in (group.obeyed | group.refused | group.accepted).items()
    }


def entry_for(entries: list[Any], path: str) -> int:
    """The first entry of a list with something at a dotted path, else with an object to put it
    in, else the first."""
    above = path.rpartition(".")[0]
    ways = [
        number for way in (path, above) for number, each in enumerate(entries) if has(each, way)
    ]
    return next(iter(ways), 0)


def has(value: Any, path: str) -> bool:
    """Whether there is something at a dotted path, through lists; with no path, an object."""
    if isinstance(value, list):
        return any(has(each, path) for each in value)
    name, _, rest = path.partition(".")
    if not isinstance(value, dict) or not name:
        return isinstance(value, dict)
    return name in value and (not rest or has(value[name], rest))
