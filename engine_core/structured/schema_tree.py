"""Where a JSON schema has schemas within it, and the paths that name its keywords."""

import json
import re
from collections.abc import Callable, Iterator, Set
from typing import Any, cast

Schema = dict[str, Any]
Path = tuple[str | int, ...]

DEFINITIONS = ("$defs", "definitions")

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
_PLAIN_NAME = re.compile(r"[\w$-]+", re.ASCII)


class SchemaError(ValueError):
    """A schema that no text is generated for; the message names the keyword."""


def path_text(path: Path) -> str:
    """The path of a keyword as messages and headers write it: ASCII, with no line break.

    >>> path_text(("properties", "a b", "allOf", 0, "pattern"))
    '$.properties["a b"].allOf[0].pattern'
    """
    return "$" + "".join(
        f".{part}" if isinstance(part, str) and _PLAIN_NAME.fullmatch(part) else _bracketed(part)
        for part in path
    )


def children(keyword: str, value: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas in a keyword's value, each with its path from the keyword's schema.

    What stands in `const`, `enum`, `default` and `examples` is data.
    """
    if isinstance(value, list):
        if keyword in _SCHEMAS:
            for index, each in enumerate(as_list(value)):
                yield (keyword, index), each
    elif keyword in _ONE_SCHEMA:
        yield (keyword,), value
    elif keyword in _NAMED_SCHEMAS:
        for name, each in as_schema(value).items():
            yield (keyword, name), each


def walk(schema: Any, visit: Callable[[Schema, Path], None], path: Path = ()) -> None:
    """Visit `schema` and all schemas within it, the innermost first."""
    if not isinstance(schema, dict):
        return
    keywords = cast("Schema", schema)
    for keyword, value in keywords.items():
        for place, child in children(keyword, value):
            walk(child, visit, path + place)
    visit(keywords, path)


def mapped(schema: Schema, change: Callable[[Path, Any], Any]) -> Schema:
    """A copy of `schema` in which `change(its path, it)` stands for each schema within it."""
    copy: Schema = {}
    for keyword, value in schema.items():
        found = [change(place, child) for place, child in children(keyword, value)]
        if not found:
            copy[keyword] = value
        elif isinstance(value, list):
            copy[keyword] = found
        elif keyword in _NAMED_SCHEMAS:
            copy[keyword] = dict(zip(as_schema(value), found, strict=True))
        else:
            copy[keyword] = found[0]
    return copy


def without(schema: Any, left_out: Set[Path], path: Path = ()) -> Any:
    """A copy of `schema` without the keywords at these paths. `oneOf` becomes `anyOf`, if there is
    none."""
    if not isinstance(schema, dict):
        return schema
    keywords = cast("Schema", schema)
    copy = mapped(keywords, lambda place, child: without(child, left_out, path + place))
    for keyword in keywords:
        if (*path, keyword) in left_out:
            value = copy.pop(keyword)
            if keyword == "oneOf" and "anyOf" not in keywords:
                copy["anyOf"] = value
    return copy


def new_name(kind: str, definitions: Schema) -> str:
    """A name that none of `definitions` has."""
    name = f"{kind}-{len(definitions)}"
    while name in definitions:
        name += "-"
    return name


def as_list(value: Any) -> list[Any]:
    """`value` if it is a list, otherwise an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_schema(value: Any) -> Schema:
    """`value` if it is an object, otherwise an empty one."""
    return cast("Schema", value) if isinstance(value, dict) else {}


def _bracketed(part: str | int) -> str:
    return f"[{json.dumps(part)}]"
