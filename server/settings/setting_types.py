"""Types of settings: their ranges, and how their values are written as text."""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from server.settings.api_keys import APIKeyError, checked_key

_BYTE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class Written(msgspec.Struct, frozen=True):
    """How values of a type are written in flags, and also in the file (`in_file`).

    `read` takes a text that matches `pattern`. Of any other text, and of a value out of range,
    `fault` says what it is not. The help has `metavar`, and defaults as `write` returns them.
    """

    pattern: str
    read: Callable[[str], object]
    fault: str
    metavar: str | None = None
    in_file: bool = False
    write: Callable[[Any], str] = str


def _size(text: str) -> int:
    number = text.lower().rstrip("kmgib ")
    unit = text.lower().removeprefix(number).strip().removesuffix("b")
    return int(float(number) * _BYTE_UNITS[unit])


def _size_text(size: int) -> str:
    return f"{size >> 20}MiB" if size % (1 << 30) else f"{size >> 30}GiB"


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.split("[:,]", text)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _api_key(text: str) -> str:
    """Error messages do not show it."""
    try:
        return checked_key(text)
    except APIKeyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


Positive = Annotated[
    int, Meta(ge=1, le=2**31 - 1), Written("[0-9]{1,10}", int, "not a whole number above 0", "N")
]
Count = Annotated[
    int, Meta(ge=0, le=2**31 - 1), Written("[0-9]{1,10}", int, "not a whole number", "N")
]
ZeroOrOne = Annotated[int, Meta(ge=0, le=1), Written("[01]", int, "neither 0 nor 1", "0|1")]
Seconds = Annotated[
    float,
    Meta(ge=0, le=10**6),
    Written(r"[0-9]+(\.[0-9]+)?", float, "not a number of seconds", "SECONDS"),
]
Share = Annotated[
    float,
    Meta(gt=0, le=1),
    Written(r"[0-9]*\.?[0-9]+", float, "not a fraction (above 0, at most 1)", "SHARE"),
]
Port = Annotated[int, Meta(ge=0, le=65_535), Written("[0-9]{1,5}", int, "not a port (0 to 65535)")]
Bytes = Annotated[
    int,
    Meta(ge=1, le=2**63 - 1),
    Written(
        r"(?i)[0-9]{1,19}(\.[0-9]+)? ?([kmg]i?)?b?",
        _size,
        "not a size, such as 2GiB or 512MB",
        "SIZE",
        in_file=True,
        write=_size_text,
    ),
]
StageLayers = Annotated[
    tuple[Positive, ...],
    Written(
        r"\s*[0-9]{1,10}\s*(,\s*[0-9]{1,10}\s*)*",
        _integers,
        "not a number of layers above 0 for each stage, such as 9,8,8,7",
        "N,N,...",
        in_file=True,
    ),
]
PriorityRange = Annotated[
    tuple[Annotated[int, Meta(ge=-(2**63), le=0)], Annotated[int, Meta(ge=0, le=2**63 - 1)]],
    Written(
        "(0|-[0-9]{1,19}):[0-9]{1,19}",
        _integers,
        "not a range of priorities that contains 0, such as -1:1",
        "LOW:HIGH",
        in_file=True,
    ),
]
Text = Annotated[str, Meta(min_length=1)]
Names = Annotated[tuple[str, ...], Written("(?s).*", _names, "", "NAMES")]
KeyNames = Annotated[
    tuple[Text, ...], Written("(?s).*", _names, "not names with commas", "KEY,KEY,...")
]
KeyText = Annotated[str, Written("(?s).*", _api_key, "", "KEY")]
ClusterAddress = Annotated[
    str,
    Written(
        r"([^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}",
        str,
        "not HOST:PORT, such as 10.0.0.1:7000",
        "HOST:PORT",
        in_file=True,
    ),
]
DeviceName = Annotated[
    str, Written("auto|cpu|cuda(:[0-9]{1,4})?", str, "not auto, cpu, cuda or cuda:N", in_file=True)
]
Origin = Annotated[
    str,
    Written(
        r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+",
        str,
        "not an origin, such as https://chat.example.org (lower case, no path)",
        "ORIGIN",
        in_file=True,
    ),
]
"""An origin as a browser sends it in `Origin`, or `*` for any."""
TracesEndpoint = Annotated[
    Text,
    # A name and a password in it would be logged.
    Written(
        r"https?://[^\s/?#@]+/\S*",
        str,
        "not a URL for OTLP over HTTP, such as http://localhost:4318/v1/traces",
        "URL",
        in_file=True,
    ),
]


def written(kind: Any) -> tuple[Any, Written] | None:
    """The part of a type that one text gives, and how it is written. None if that is any text."""
    metadata: tuple[object, ...] = getattr(kind, "__metadata__", ())
    for each in metadata:
        if isinstance(each, Written):
            return kind, each
    return next(filter(None, map(written, get_args(kind))), None)


def choices(kind: Any) -> tuple[str, ...]:
    """The texts of a type's literals and enumerations."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(member.value for member in kind)
    return tuple(text for part in get_args(kind) for text in choices(part))


def parse(kind: Any, text: str) -> Any:
    """The value of a setting of type `kind`, or of one item of it, that `text` gives. Raises
    argparse.ArgumentTypeError."""
    found = written(kind)
    if found is None:
        return text
    part, form = found
    if re.fullmatch(form.pattern, text, re.ASCII):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(form.read(text), part)
    raise argparse.ArgumentTypeError(f"{text!r} is {form.fault}")


parse_positive, parse_share = partial(parse, Positive), partial(parse, Share)
parse_size = partial(parse, Bytes)


class FlagGroup(StrEnum):
    """The headings under which `--help` lists flags, in this order."""

    MODELS = "models"
    ENGINES = "engines, for each model"
    CAPACITY = "capacity, for each model"
    HOSTS = "several hosts"
    HTTP = "HTTP"
    ACCESS = "access"
    LIMITS = "limits"
    STORAGE = "files and batches"
    LIFE = "start and stop"

    def __call__(self, help_: str, metavar: str | None = None) -> "Flag":
        return Flag(self, help_, metavar)


class Flag(msgspec.Struct, frozen=True):
    """The flag of one setting, whose type says how its text is read.

    Unless `help` says the default, the setting's own is shown. `metavar` replaces the type's.
    """

    group: FlagGroup
    help: str
    metavar: str | None = None


def declared_flags(struct: type[msgspec.Struct]) -> Iterator[tuple[FieldInfo, Flag]]:
    """The fields of `struct` that have a flag, in order. The others are only keys of the file."""
    for field in msgspec.structs.fields(struct):
        metadata: tuple[Any, ...] = getattr(field.type, "__metadata__", ())
        yield from ((field, each) for each in metadata if isinstance(each, Flag))
