"""How a setting declares its flag, beside type and default; `server.settings.flags` adds it."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Literal, get_type_hints

import msgspec


class FlagGroup(StrEnum):
    """The headings under which `--help` lists flags, in this order."""

    MODELS = "models"
    ENGINES = "engines, for each model"
    CAPACITY = "capacity, for each model"
    HTTP = "HTTP"
    ACCESS = "access"
    LIMITS = "limits"
    STORAGE = "files and batches"
    LIFE = "start and stop"


class Flag(msgspec.Struct, frozen=True):
    """The flag of one setting.

    `parse` reads its text, which `metavar` names in the help; `choices` are the only texts allowed.
    The flag of a list is given once for each item (`append`).
    """

    group: FlagGroup
    help: str
    parse: Callable[[str], object] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    action: Literal["store", "append", "store_true"] = "store"


def declared_flags(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Flag]]:
    """The fields of `struct` that have a flag, in order. The others are only keys of the file."""
    for key, hint in get_type_hints(struct, include_extras=True).items():
        metadata: tuple[Any, ...] = getattr(hint, "__metadata__", ())
        yield from ((key, each) for each in metadata if isinstance(each, Flag))
