"""The JSON types that a schema allows: they decide how a format of calls writes a value."""

from collections.abc import Mapping
from typing import Any, cast

from engine_core.structured.schema_tree import Schema, as_list, as_schema, target
from engine_core.turn_format import JSON_TYPES

_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})


def choices_of(schema: object, root: object) -> list[Schema]:
    """The schemas of which a value matches one, behind references, `anyOf` and `oneOf`.

    What cannot be joined with the schema around it stays as it is.
    """
    found: list[Schema] = []
    waiting, seen = [as_schema(schema)], set[str]()
    while waiting:
        each = waiting.pop(0)
        word = next((word for word in ("$ref", "anyOf", "oneOf") if word in each), "")
        around = {key: value for key, value in each.items() if key != word}
        reference = str(each.get("$ref", ""))
        ways = [target(root, reference)] if word == "$ref" else as_list(each.get(word))
        joined = [around | as_schema(way) for way in ways]
        if not word or not all(_holds(around, way) for way in joined):
            found.append(each)
        elif word != "$ref" or reference not in seen:  # a choice leads to itself
            waiting[:0] = joined
            seen |= {reference} if word == "$ref" else set()
    return found or [{}]


def _holds(around: Schema, joined: Schema) -> bool:
    """True if all that restricts `around` has been kept."""
    return all(joined[key] == around[key] for key in around.keys() - _ANNOTATIONS)


def constants_of(schema: Mapping[str, Any]) -> list[Any]:
    """The values of an enumeration that are of the schema's types."""
    values = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
    types = _declared(schema)
    return [value for value in values if type_of_value(value) & types]


def types_of(schema: object, root: object) -> set[str]:
    """The JSON types that a schema allows, all if it does not say. References lead from `root`."""
    found = set[str]()
    for choice in choices_of(schema, root):
        constants = constants_of(choice)
        names = {name for value in constants for name in type_of_value(value)}
        found |= names or _declared(choice)
    return found


def types_of_member(root: Mapping[str, Any], key: str) -> set[str]:
    """The JSON types of an object's member."""
    ways = [
        as_schema(choice.get("properties")).get(key, choice.get("additionalProperties"))
        for choice in choices_of(root, root)
    ]
    return types_of({"anyOf": ways}, root)


def _declared(schema: Mapping[str, Any]) -> set[str]:
    declared = schema.get("type") or JSON_TYPES
    types = {declared} if isinstance(declared, str) else set(cast("list[str]", declared))
    return types | ({"null"} if schema.get("nullable") else set())


def type_of_value(value: Any) -> set[str]:
    """The JSON types that a value is of."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    names = {str: {"string"}, int: {"integer", "number"}, float: {"number"}, dict: {"object"}}
    return names.get(cast(type, type(value)), {"array"} if isinstance(value, list) else {"null"})
