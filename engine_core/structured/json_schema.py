"""JSON schemas as clients write them, put into what llguidance understands.

What is an annotation only is left out, what has an equivalent is replaced by it, and what has none
stays: llguidance refuses it by name.
"""

import json
from collections.abc import Callable
from typing import Any, cast

Schema = dict[str, Any]

_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "uuid"),
        *("email", "hostname", "ipv4", "ipv6", "uri"),
    }
)
"""Those that llguidance follows. JSON Schema (2020-12, 7.2.1) has all others as annotations."""

_NO_LEAP_SECOND = "^[^:]*:[^:]*:[0-5]"
"""RFC 3339 has a second 60, which hardly any reader takes."""

_MOST_NAMES = 64
_MAX_NUMBER = 40

_ONE_SCHEMA = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
        *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_SCHEMAS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class SchemaError(ValueError):
    """A schema that no text is generated for; the message names the keyword."""


def simplified(source: str) -> str:
    """The JSON schema `source`, without what only looks like a constraint.

    - Formats that are not followed are annotations.
    - Times have no second 60.
    - `propertyNames` with an enum are optional properties.
    - `x-guidance`, by which a schema would set options of llguidance, is left out.

    Raises SchemaError for JSON that cannot be read and `propertyNames` of another kind.
    """
    root = _decoded(source)
    try:
        return json.dumps(_Rewriting(root).result(), allow_nan=False)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    except SchemaError:
        raise
    except ValueError:
        raise SchemaError("the schema has a number that is too large") from None


def largest_bound(source: str) -> str:
    """The keyword of the number that is furthest from 0 among those that limit numbers, and that
    number; for a message."""
    found: list[tuple[str, float]] = []
    _walk(_decoded(source), lambda schema: found.extend(_bounds(schema)))
    keyword, value = max(found, key=lambda bound: abs(bound[1]))
    return f"{keyword} {value}"[:_MAX_NUMBER]


def _decoded(source: str) -> Any:
    try:
        # Not msgspec's, which has no integers of more than 64 bits.
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema cannot be read: {error}") from None


def _bounds(schema: Schema) -> list[tuple[str, float]]:
    return [
        (keyword, value)
        for keyword in _BOUNDS
        if isinstance(value := schema.get(keyword), int | float)
    ]


def _walk(schema: Any, visit: Callable[[Schema], None]) -> None:
    """Visit `schema` and all schemas within it, the innermost first. What stands in `const`,
    `enum`, `default` and `examples` is data."""
    if not isinstance(schema, dict):
        return
    keywords = cast("Schema", schema)
    for keyword, value in keywords.items():
        if keyword in _ONE_SCHEMA:
            _walk(value, visit)
        if keyword in _SCHEMAS:
            for each in _list(value):
                _walk(each, visit)
        if keyword in _NAMED_SCHEMAS:
            for each in _object(value).values():
                _walk(each, visit)
    visit(keywords)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


class _Rewriting:
    """Of one schema, in place."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._definitions = dict(_object(_object(root).get("$defs")))

    def result(self) -> Any:
        """The schema, rewritten."""
        _walk(self._root, self._rewrite)
        if self._definitions:
            self._root["$defs"] = self._definitions
        return self._root

    def _rewrite(self, schema: Schema) -> None:
        schema.pop("x-guidance", None)
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        if isinstance(schema.get("format"), str):
            _rewrite_format(schema)
        if "propertyNames" in schema:
            self._rewrite_names(schema)

    def _rewrite_names(self, schema: Schema) -> None:
        """Make `propertyNames` optional properties, each with the schema of additional ones."""
        names = self._names(schema.pop("propertyNames"))
        own = _object(schema.get("properties"))
        if "patternProperties" in schema:
            raise SchemaError("propertyNames: not served beside patternProperties")
        if any(name not in names for name in _list(schema.get("required"))):
            raise SchemaError("propertyNames: a required name is none of its enum")
        value = schema.get("additionalProperties", True)
        if value is False:
            schema["properties"] = {each: own[each] for each in names if each in own}
        else:
            other = self._defined(value)
            schema["properties"] = {each: own.get(each, other) for each in names}
        schema["additionalProperties"] = False

    def _defined(self, schema: Any) -> Schema:
        """A reference to `schema`, which would otherwise be copied for each name, and within each
        copy again."""
        name = f"values-{len(self._definitions)}"
        while name in self._definitions:
            name += "-"
        self._definitions[name] = schema
        return {"$ref": "#/$defs/" + name}

    def _names(self, schema: Any) -> list[str]:
        resolved = self._resolved(schema)
        values = [resolved["const"]] if "const" in resolved else _list(resolved.get("enum"))
        others = resolved.keys() - {"enum", "const", "type", "title", "description"}
        if others or not 0 < len(values) <= _MOST_NAMES:
            raise SchemaError(f"propertyNames: only an enum of at most {_MOST_NAMES} is served")
        return [value for value in values if isinstance(value, str)]

    def _resolved(self, schema: Any) -> Schema:
        """What a chain of references to `$defs` or `definitions` leads to."""
        resolved = _object(schema)
        for _ in range(_MOST_NAMES):
            reference = resolved.get("$ref")
            if not isinstance(reference, str):
                return resolved
            place, _, name = reference.removeprefix("#/").rpartition("/")
            resolved = _object(_object(self._root.get(place)).get(name))
        return {}


def _rewrite_format(schema: Schema) -> None:
    if schema["format"] not in _FORMATS:
        del schema["format"]
    elif schema["format"] in ("date-time", "time"):
        if "pattern" not in schema:
            schema["pattern"] = _NO_LEAP_SECOND
        else:
            schema["allOf"] = [*_list(schema.get("allOf")), {"pattern": _NO_LEAP_SECOND}]
