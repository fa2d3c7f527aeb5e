"""The JSON types that a schema allows: they decide how a format of calls writes a value."""

from collections.abc import Mapping
from typing import Any, cast

from engine_core.turn_format import JSON_TYPES


def types_of(schema: object) -> set[str]:
    """The JSON types that a schema allows, all if it does not say."""
    if not isinstance(schema, Mapping):
        return set(JSON_TYPES)
    known = cast(Mapping[str, Any], schema)
    if "const" in known or isinstance(known.get("enum"), list):
        values: list[Any] = known["enum"] if "enum" in known else [known["const"]]
        return {name for value in values for name in type_of_value(value)}
    if declared := known.get("type"):
        types = {declared} if isinstance(declared, str) else set(declared)
        return types | ({"null"} if known.get("nullable") else set())
    for word in ("anyOf", "oneOf"):
        if isinstance(known.get(word), list):
            return {name for choice in known[word] for name in types_of(choice)}
    return set(JSON_TYPES)


def type_of_value(value: Any) -> set[str]:
    """The JSON types that a value is of."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    names = {str: {"string"}, int: {"integer", "number"}, float: {"number"}, dict: {"object"}}
    return names.get(cast(type, type(value)), {"array"} if isinstance(value, list) else {"null"})
