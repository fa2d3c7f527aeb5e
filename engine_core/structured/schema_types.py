"""The JSON types that a schema allows: they decide how a format of calls writes a value."""

from collections.abc import Mapping
from typing import Any, cast

from engine_core.structured.schema_tree import as_schema
from engine_core.turn_format import JSON_TYPES

_MAX_DEPTH = 6


def resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a chain of references within `root` leads to. Empty if it leads nowhere."""
    for _ in range(_MAX_DEPTH):
        reference: object = as_schema(schema).get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for step in reference[2:].split("/"):
            schema = as_schema(schema).get(step)
    return as_schema(schema)


def types_of(schema: object, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema within `root` allows, all if it does not say."""
    known = resolved(schema, root)
    if "const" in known or isinstance(known.get("enum"), list):
        values: list[Any] = known["enum"] if "enum" in known else [known["const"]]
        return {name for value in values for name in type_of_value(value)}
    if declared := known.get("type"):
        types = {declared} if isinstance(declared, str) else set(declared)
        return types | ({"null"} if known.get("nullable") else set())
    for word in ("anyOf", "oneOf"):
        if isinstance(known.get(word), list) and depth < _MAX_DEPTH:
            choices = (types_of(choice, root, depth + 1) for choice in known[word])
            return {name for types in choices for name in types}
    return set(JSON_TYPES)


def type_of_value(value: Any) -> set[str]:
    """The JSON types that a value is of."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    names = {str: {"string"}, int: {"integer", "number"}, float: {"number"}, dict: {"object"}}
    return names.get(cast(type, type(value)), {"array"} if isinstance(value, list) else {"null"})
