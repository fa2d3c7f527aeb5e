"""Where a JSON schema has schemas within it, and the paths that name its keywords."""

import json
import re
from collections.abc import Callable, Set
from typing import Any, cast

Schema = dict[str, Any]
Path = tuple[str | int, ...]

DEFINITIONS = ("$defs", "definitions")

_ONE_SCHEMA = frozenset(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames "
    "then unevaluatedItems unevaluatedProperties".split()
)
_SCHEMAS = frozenset("allOf anyOf items oneOf prefixItems".split())
_NAMED_SCHEMAS = frozenset(
    "$defs definitions dependencies dependentSchemas patternProperties properties".split()
)
_WITH_SCHEMAS = _ONE_SCHEMA | _SCHEMAS | _NAMED_SCHEMAS
_PLAIN_NAME = re.compile(r"[\w$-]+", re.ASCII)


def path_text(path: Path) -> str:
    """The path of a keyword as messages and headers write it: ASCII, with no line break.

    >>> path_text(("properties", "a b", "allOf", 0, "pattern"))
    '$.properties["a b"].allOf[0].pattern'
    """
    return "$" + "".join(
        f".{part}" if isinstance(part, str) and _PLAIN_NAME.fullmatch(part) else _bracketed(part)
        for part in path
    )


def children(keyword: str, value: Any) -> list[tuple[Path, Any]]:
    """The schemas in a keyword's value, each with its path from the keyword's schema.

    What stands in `const`, `enum`, `default` and `examples` is data.
    """
    if keyword not in _WITH_SCHEMAS:
        return []
    if isinstance(value, list):
        listed = as_list(value) if keyword in _SCHEMAS else []
        return [((keyword, index), each) for index, each in enumerate(listed)]
    if keyword in _NAMED_SCHEMAS:
        return [((keyword, name), each) for name, each in as_schema(value).items()]
    return [((keyword,), value)] if keyword in _ONE_SCHEMA else []


def schemas_in(root: Any) -> list[tuple[Path, Schema]]:
    """`root` and all schemas within it with their paths, the innermost first, but no booleans."""
    found: list[tuple[Path, Schema]] = []

    def collect(schema: Schema, path: Path) -> None:
        for keyword, value in schema.items():
            if keyword in _WITH_SCHEMAS:
                for place, child in children(keyword, value):
                    if isinstance(child, dict):
                        collect(cast("Schema", child), path + place)
        found.append((path, schema))

    collect(as_schema(root), ())
    return found


def mapped(schema: Schema, change: Callable[[Path, Any], Any]) -> Schema:
    """A copy of `schema` in which `change(its path, it)` stands for each schema within it."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword not in _WITH_SCHEMAS:
            continue
        found = [change(place, child) for place, child in children(keyword, value)]
        if isinstance(value, list):
            copy[keyword] = found or value
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
