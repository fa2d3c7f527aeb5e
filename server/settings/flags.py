"""The flags of `penstock serve`, from the settings that declare them.

A flag that is not given sets no option: defaults are applied later.
"""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from server.settings.setting_types import Flag, FlagGroup, choices, declared_flags, parse, written
from server.settings.settings import (
    LIST_FLAGS,
    EngineSettings,
    ModelSettings,
    ServeCommand,
    Settings,
    flag_name,
)

ENGINE_FLAGS = (FlagGroup.ENGINES, FlagGroup.CAPACITY)

_DESCRIPTIONS = {
    FlagGroup.LIFE: "/health and /health/ready answer 200 while every model accepts requests, 503\n"
    "before and after; use /health/live for a liveness probe.",
}


def add_flags(
    parser: argparse.ArgumentParser, groups: Iterable[FlagGroup] = tuple(FlagGroup)
) -> None:
    """Add the flags of `groups`. Each sets the option with the key of its setting."""
    declared = [
        (field, flag)
        for struct in (ModelSettings, Settings, ServeCommand)
        for field, flag in declared_flags(struct)
    ]
    for group in groups:
        arguments = parser.add_argument_group(group, _DESCRIPTIONS.get(group))
        for field, flag in declared:
            if flag.group == group:
                _add_flag(arguments, field, flag)


def add_engine_flag(parser: argparse.ArgumentParser, key: str, help_: str) -> None:
    """Add the flag of an engine's setting to a command that has its own words for it."""
    declared = {field.name: (field, flag) for field, flag in declared_flags(EngineSettings)}
    field, flag = declared[key]
    _add_flag(parser, field, msgspec.structs.replace(flag, help=help_))


def _add_flag(arguments: Any, field: FieldInfo, flag: Flag) -> None:
    form, help_ = written(field.type), flag.help
    if "(default: " not in help_:
        default = form[1].write(field.default) if form else str(field.default)
        help_ += f" (default: {default.removesuffix('.0')})"
    reading: dict[str, Any] = {
        "default": argparse.SUPPRESS,
        "action": "append" if field.name in LIST_FLAGS else "store",
        "type": partial(parse, field.type),
        "metavar": flag.metavar or (form and form[1].metavar),
        "choices": choices(field.type) or None,
    }
    if field.default is False:
        reading = {"action": "store_true", "default": argparse.SUPPRESS}
    arguments.add_argument(flag_name(field.name), dest=field.name, help=help_, **reading)
