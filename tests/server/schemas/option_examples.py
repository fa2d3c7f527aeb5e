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
    """The first entry of a list with the field that a dotted path leads through; else the first."""
    name, _, _ = path.partition(".")
    has = (isinstance(each, dict) and name in each for each in entries)
    return next((number for number, it_has in enumerate(has) if it_has), 0)
