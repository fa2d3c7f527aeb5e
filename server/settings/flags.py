"""The flags of `penstock serve`, from the settings that declare them.

A flag that is not given sets no option: defaults are applied later.
"""

import argparse
from collections.abc import Iterable
from typing import Any

from server.settings.engine_settings import EngineSettings, ModelSettings
from server.settings.flag_declaration import Flag, FlagGroup, declared_flags
from server.settings.setting_names import flag_name
from server.settings.settings import ServeCommand, Settings

ENGINE_FLAGS = (FlagGroup.ENGINES, FlagGroup.CAPACITY)

_DESCRIPTIONS = {
    FlagGroup.LIFE: "/health and /health/ready answer 200 while every model accepts requests, 503\n"
    "before and after; use /health/live for a liveness probe.",
}


def add_flags(
    parser: argparse.ArgumentParser, groups: Iterable[FlagGroup] = tuple(FlagGroup)
) -> None:
    """Add the flags of `groups`; each sets the option with the key of its setting."""
    declared = [
        (key, each)
        for struct in (ModelSettings, Settings, ServeCommand)
        for key, each in declared_flags(struct)
    ]
    for group in groups:
        arguments = parser.add_argument_group(
            group, _DESCRIPTIONS.get(group), argument_default=argparse.SUPPRESS
        )
        for key, each in declared:
            if each.group == group:
                arguments.add_argument(flag_name(key), dest=key, help=each.help, **_reading(each))


def add_engine_flag(parser: argparse.ArgumentParser, key: str, help_: str) -> None:
    """Add the flag of an engine's setting to a command that has its own words for it."""
    declared = dict(declared_flags(EngineSettings))[key]
    parser.add_argument(
        flag_name(key), dest=key, default=argparse.SUPPRESS, help=help_, **_reading(declared)
    )


def _reading(declared: Flag) -> dict[str, Any]:
    """How argparse reads the flag's text; a switch has none."""
    if declared.action == "store_true":
        return {"action": declared.action}
    return {
        "action": declared.action,
        "type": declared.parse,
        "metavar": declared.metavar,
        "choices": declared.choices,
    }
