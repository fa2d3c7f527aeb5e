"""How a setting declares its flag, beside type and default; `server.settings.flags` adds it."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import FieldInfo


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
    """The flag of one setting, whose type says how its text is read.

    `help` ends with the default; without one there, it is the setting's own. `metavar` names the
    text where the type has no name for it.
    """

    group: FlagGroup
    help: str
    metavar: str | None = None


def declared_flags(struct: type[msgspec.Struct]) -> Iterator[tuple[FieldInfo, Flag]]:
    """The fields of `struct` that have a flag, in order. The others are only keys of the file."""
    for field in msgspec.structs.fields(struct):
        metadata: tuple[Any, ...] = getattr(field.type, "__metadata__", ())
        yield from ((field, each) for each in metadata if isinstance(each, Flag))
