"""The flags of `penstock serve`, from the settings that declare them, merged over the file's."""

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from server.demo import demo_models
from server.settings.config_file import read_config_file
from server.settings.setting_types import Flag, FlagGroup, choices, declared_flags, parse, written
from server.settings.settings import (
    LIST_FLAGS,
    EngineSettings,
    ModelSettings,
    ServeCommand,
    SettingNames,
    Settings,
    api_key_from,
    flag_name,
)

ENGINE_FLAGS = (FlagGroup.ENGINES, FlagGroup.CAPACITY)

_OF_HEALTH = """\
/health, /health/ready and /ping answer 200 while every model accepts requests, 503
before and after; use /health/live for a liveness probe."""


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
        arguments = parser.add_argument_group(
            group, _OF_HEALTH if group == FlagGroup.LIFE else None
        )
        for field, flag in declared:
            if flag.group == group:
                add_flag(arguments, field, flag)


def add_flag(arguments: Any, field: FieldInfo, flag: Flag) -> None:
    """Add the flag of one setting to a parser, or to a group of its arguments."""
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


def serve_command(parser: argparse.ArgumentParser, given: Mapping[str, Any]) -> ServeCommand:
    """The command of the `given` options: flags, else the file, else the environment.

    Exits through `parser` for a contradiction. Raises SettingsError and DemoModelMissingError.
    """
    server = {key: given[key] for key in Settings.__struct_fields__ if key in given}
    server |= {key: tuple(server[key]) for key in LIST_FLAGS if key in server}
    sources: list[str] = server.pop("models")
    engine = {key: given[key] for key in EngineSettings.__struct_fields__ if key in given}
    names: list[tuple[str, ...]] = given.get("names", [])
    if given["config"] is None:
        settings = Settings(models=_models(parser, sources, names, engine), **server)
        setting_names = SettingNames()
    else:
        of_models = [*map(flag_name, engine), *([flag_name("names")] if names else [])]
        if sources or of_models:
            parser.error(
                f"{', '.join(of_models or sources)}: with --config, models come only from the file"
            )
        settings = msgspec.structs.replace(read_config_file(given["config"]), **server)
        if not settings.models:
            demo = _models(parser, [], [], {})
            settings = msgspec.structs.replace(settings, models=demo)
        setting_names = SettingNames(file=str(given["config"]), flags=frozenset(server))
    api_key = given.get("api_key") or api_key_from()
    return ServeCommand(settings=settings, api_key=api_key, setting_names=setting_names)


def _models(
    parser: argparse.ArgumentParser,
    sources: list[str],
    names: list[tuple[str, ...]],
    engine: dict[str, Any],
) -> tuple[ModelSettings, ...]:
    """Raises DemoModelMissingError if no model is named."""
    for source in sources:
        if source.endswith((".yaml", ".yml")):
            parser.error(f"{source} is not a model; give a configuration file with --config")
    if not sources:
        demo = demo_models()
        sources = list(map(str, demo.values()))
        names = names or [(name,) for name in demo]
    if names and len(names) != len(sources):
        parser.error(f"{len(names)} --served-model-name for {len(sources)} models")
    return tuple(
        ModelSettings(model=source, names=own, **engine)
        for source, own in zip(sources, names or [()] * len(sources), strict=True)
    )
