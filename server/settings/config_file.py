"""The configuration file: YAML that means what it seems to, every error one line."""

import argparse
import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from server.errors import Fault, fault_of
from server.settings.setting_types import choices, parse, written
from server.settings.settings import NO_STATE, RETIRED, ModelSettings, Settings, SettingsError

_MAX_BYTES = 1 << 20
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null"))
_MODEL_PATH = re.compile(r"models\[\d+\]\.")


def read_config_file(file: Path) -> Settings:
    """Raises SettingsError, which names the file and the line, or the key."""
    raw = _load(file, _read(file))
    if raw is None:
        raise SettingsError(f"{file} is empty")
    try:
        settings = msgspec.convert(_converted(f"{file}: ", raw, Settings), Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{file}: {_message(fault_of(error))}") from None
    return _with_absolute_paths(file.parent, settings)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            raw = source.read(_MAX_BYTES + 1)
        text = raw.decode()
    except (OSError, ValueError) as error:  # also bytes that are not UTF-8, a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{file} cannot be read: {reason}") from None
    if len(raw) > _MAX_BYTES:
        raise SettingsError(f"{file} is larger than {_MAX_BYTES >> 20} MiB")
    return text


class _Loader(yaml.SafeLoader):
    """YAML without aliases, tags, dates, merged mappings and keys given twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = cast("yaml.Event", self.peek_event())  # pyright: ignore[reportUnknownMemberType]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not read", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None) not in (None, "!"):
            raise yaml.MarkedYAMLError(problem="tags are not read", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is text", problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"the key {key.value} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag in _PLAIN_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _load(file: Path, text: str) -> object:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader that reads even less)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise SettingsError(f"{file}{where}: {error.problem or error.context}") from None
    except RecursionError:
        raise SettingsError(f"{file} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # also a number that Python cannot hold
        raise SettingsError(f"{file}: {' '.join(str(error).split())}") from None


def _converted(place: str, raw: object, struct: type[msgspec.Struct]) -> object:
    """`raw`, with the texts parsed that are written as those of flags are."""
    if not isinstance(raw, dict):
        return raw
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    converted: dict[object, object] = {}
    for key, value in cast("dict[object, object]", raw).items():
        path = f"{place}{key}"
        if key == "models" and isinstance(value, list):
            models = enumerate(cast("list[object]", value))
            converted[key] = [_converted(f"{path}[{i}].", m, ModelSettings) for i, m in models]
        else:
            converted[key] = _parsed(path, types.get(cast("str", key)), value)
    return converted


def _parsed(path: str, kind: Any, value: object) -> object:
    """`value` of a setting of type `kind`, or the values of its list."""
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return [_parsed(f"{path}[{index}]", kind, item) for index, item in items]
    found = written(kind)
    if not isinstance(value, str) or found is None or not found[1].in_file:
        return value
    try:
        return parse(kind, value)
    except argparse.ArgumentTypeError as error:
        raise SettingsError(f"{path}: {error}") from None


def _message(fault: Fault) -> str:
    path = fault.path
    if fault.kind == "key":
        return f"a key of {path} is no text" if path else "a key is no text"
    struct = ModelSettings if _MODEL_PATH.match(path) else Settings
    key = path.rpartition(".")[2]
    if fault.kind == "unknown" and key in RETIRED:
        return f"{path}: is gone; {RETIRED[key]}"
    if fault.kind == "unknown":
        near = difflib.get_close_matches(key.replace("-", "_"), struct.__struct_fields__, 1, 0.5)
        return f"{path}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    allowed = [choices(each.type) for each in msgspec.structs.fields(struct) if each.name == key]
    if any(allowed) and fault.kind in ("value", "entry"):
        return f"{path}: {fault.reason}; one of {', '.join(*allowed)}"
    return f"{path}: {fault.reason}" if path else fault.reason


def _with_absolute_paths(folder: Path, settings: Settings) -> Settings:
    """Resolve relative paths against `folder`, the file's."""

    def path(text: str) -> str:
        return str(folder / Path(text).expanduser())

    def source(text: str) -> str:
        """A path if it looks like one or such a folder exists, otherwise a hub id."""
        is_path = text.startswith((".", "/", "~")) or Path(path(text)).exists()
        return path(text) if is_path else text

    return msgspec.structs.replace(
        settings,
        models=tuple(
            msgspec.structs.replace(model, model=source(model.model)) for model in settings.models
        ),
        api_key_files=tuple(map(path, settings.api_key_files)),
        state_dir=settings.state_dir
        if settings.state_dir in (None, NO_STATE)
        else path(settings.state_dir),
        tls_cert=settings.tls_cert and path(settings.tls_cert),
        tls_key=settings.tls_key and path(settings.tls_key),
        cluster_secret_file=settings.cluster_secret_file and path(settings.cluster_secret_file),
    )
