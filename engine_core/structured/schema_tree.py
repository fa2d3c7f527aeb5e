"""A client's JSON schema, checked, with references as pointers, and the schemas within it."""

import json
import re
from collections.abc import Callable, Iterable, Set
from typing import Annotated, Any, Literal, TypedDict, cast
from urllib.parse import unquote, urldefrag, urljoin

import msgspec
from msgspec import Meta

Schema = dict[str, Any]
SchemaPath = tuple[str | int, ...]

DEFINITIONS = ("$defs", "definitions")
COUNTS = frozenset("minLength maxLength minItems maxItems minProperties maxProperties".split())

_ONE_SCHEMA = frozenset(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames "
    "then unevaluatedItems unevaluatedProperties".split()
)
_SCHEMAS = frozenset("allOf anyOf items oneOf prefixItems".split())
_NAMED_SCHEMAS = frozenset(
    "$defs definitions dependencies dependentSchemas patternProperties properties".split()
)
_WITH_SCHEMAS = _ONE_SCHEMA | _SCHEMAS | _NAMED_SCHEMAS

_Type = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
_Place = dict[str, Any] | bool
_VALUES: dict[str, Any] = {
    **dict.fromkeys(_ONE_SCHEMA - {"contentSchema"}, _Place),
    **dict.fromkeys(_SCHEMAS, Annotated[list[_Place], Meta(min_length=1)]),
    **dict.fromkeys(_NAMED_SCHEMAS - {"dependencies"}, dict[str, _Place]),
    **dict.fromkeys(
        {*COUNTS, "minContains", "maxContains"}, Annotated[float, Meta(ge=0, multiple_of=1)]
    ),
    **dict.fromkeys(("$ref", "format", "pattern"), str),
    **dict.fromkeys(("minimum", "maximum"), float),
    # A boolean in draft 4, beside `minimum` or `maximum`.
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), float | bool),
    "enum": list[Any],
    "items": dict[str, Any] | list[_Place] | bool,
    "multipleOf": Annotated[float, Meta(gt=0)],
    "prefixItems": list[_Place],
    "required": list[str],
    "type": _Type | Annotated[list[_Type], Meta(min_length=1)],
    "uniqueItems": bool,
}
"""The values that JSON Schema asks of keywords, as far as these are read."""

_Keywords: Any = TypedDict("_Keywords", _VALUES, total=False)  # pyright: ignore[reportArgumentType]
msgspec.json.Decoder(_Keywords)  # while two threads learn a type at once, msgspec may crash

_MAX_DEPTH = 128
"""The depth to which llguidance parses."""
_PLAIN_NAME = re.compile(r"[\w$-]+", re.ASCII)
_BASE = "http://root.invalid/"
_NAMES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
_MOST_STEPS = 64


class GrammarError(ValueError):
    """A grammar that cannot be followed. Its message, one line, names a schema's keyword.

    `param` is the field at fault, if the grammar has several."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


def decoded(source: str) -> Schema:
    """Read a JSON schema, with references as pointers. Raises GrammarError for what is none."""
    try:
        # Not msgspec's, which has no integers of more than 64 bits.
        root: Any = json.loads(source, parse_float=_finite, parse_constant=_finite)
        if not isinstance(root, dict):
            raise GrammarError("the schema is not an object")
        schema = as_schema(root)
        schemas = schemas_in(schema)
        _localize(schemas)
        _hoist(schema, schemas)
        _check_valid(schemas_in(schema))
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"the schema cannot be read: {error}") from None
    return schema


def resolved(root: Any, schema: Any) -> Schema:
    """The schema that a chain of references leads to. An empty one if there is none."""
    found = as_schema(schema)
    for _ in range(_MOST_STEPS):
        if not isinstance(reference := found.get("$ref"), str):
            return found
        found = target(root, reference)
    return {}


def target(root: Any, reference: str) -> Schema:
    """The schema at a pointer from the root. An empty one if there is none."""
    found = root if reference.startswith("#") else None
    for escaped in reference.removeprefix("#").split("/")[1:]:
        part = unquote(escaped).replace("~1", "/").replace("~0", "~")
        items = as_list(found)
        if part.isdecimal() and int(part) < len(items):
            found = items[int(part)]
        else:
            found = as_schema(found).get(part)
    return as_schema(found)


def path_text(path: SchemaPath) -> str:
    """The path of a keyword as messages and headers write it: ASCII, with no line break.

    >>> path_text(("properties", "a b", "allOf", 0, "pattern"))
    '$.properties["a b"].allOf[0].pattern'
    """
    return "$" + "".join(
        f".{part}"
        if isinstance(part, str) and _PLAIN_NAME.fullmatch(part)
        else f"[{json.dumps(part)}]"
        for part in path
    )


def children(keyword: str, value: Any) -> list[tuple[SchemaPath, Any]]:
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


def schemas_in(root: Any) -> list[tuple[SchemaPath, Schema]]:
    """`root` and all schemas within it with their paths, the innermost first, but no booleans."""
    found: list[tuple[SchemaPath, Schema]] = []

    def collect(schema: Schema, path: SchemaPath) -> None:
        for keyword, value in schema.items():
            if keyword in _WITH_SCHEMAS:
                for place, child in children(keyword, value):
                    if isinstance(child, dict):
                        collect(cast("Schema", child), path + place)
        found.append((path, schema))

    collect(as_schema(root), ())
    return found


def mapped(schema: Schema, change: Callable[[SchemaPath, Schema], Schema]) -> Schema:
    """A copy in which `change(its path, it)` stands for each schema within, but for booleans."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword not in _WITH_SCHEMAS:
            continue
        found = [
            change(place, cast("Schema", child)) if isinstance(child, dict) else child
            for place, child in children(keyword, value)
        ]
        if isinstance(value, list):
            copy[keyword] = found or value
        elif keyword in _NAMED_SCHEMAS:
            copy[keyword] = dict(zip(as_schema(value), found, strict=True))
        else:
            copy[keyword] = found[0]
    return copy


def without(schema: Schema, left_out: Set[SchemaPath], path: SchemaPath = ()) -> Schema:
    """A copy without the keywords at these paths. `oneOf` becomes `anyOf`, if there is none."""
    copy = mapped(schema, lambda place, child: without(child, left_out, path + place))
    for keyword in schema:
        if (*path, keyword) in left_out:
            value = copy.pop(keyword)
            if keyword == "oneOf":
                copy.setdefault("anyOf", value)
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


def _check_valid(schemas: Iterable[tuple[SchemaPath, Schema]]) -> None:
    """Raises GrammarError, with the path of the keyword, if one is no JSON schema by itself."""
    for path, schema in schemas:
        if len(path) > _MAX_DEPTH:
            raise GrammarError("the schema is nested too deeply")
        try:
            msgspec.convert(schema, _Keywords)
        except msgspec.ValidationError as error:
            raise GrammarError(str(error).replace("`$", f"`{path_text(path)}")) from None


def _localize(schemas: list[tuple[SchemaPath, Schema]]) -> None:
    """Make references by `$id` or anchor pointers from the root, in place, if they lead
    anywhere."""
    if not any(not _NAMES.isdisjoint(schema) for _, schema in schemas):
        return
    places: dict[str, SchemaPath] = {_BASE: ()}
    bases: dict[SchemaPath, str] = {(): _BASE}
    for path, schema in sorted(schemas, key=lambda entry: len(entry[0])):
        base = next(bases[path[:end]] for end in range(len(path), -1, -1) if path[:end] in bases)
        for keyword in ("$id", "id"):
            if isinstance(name := schema.pop(keyword, None), str):
                base = urldefrag(_joined(base, name)).url or base
                # Draft 7 writes an anchor as `$id: "#name"`.
                places.setdefault(_joined(base, name), path)
        bases[path] = base
        places.setdefault(base, path)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.pop(keyword, None), str):
                places.setdefault(f"{base}#{name}", path)
    for path, schema in schemas:
        if isinstance(reference := schema.get("$ref"), str):
            schema["$ref"] = _pointer(_joined(bases[path], reference), places) or reference


def _hoist(root: Schema, schemas: list[tuple[SchemaPath, Schema]]) -> None:
    """Give definitions to schemas that are only found by references, as those of
    `#/components/schemas`, in place. `schemas` are all others."""
    names: dict[str, str] = {}
    waiting = [schema for _, schema in schemas]
    known = set(map(id, waiting))
    while waiting:
        schema = waiting.pop()
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            continue
        found = target(root, reference)
        if reference not in names and found and id(found) not in known:
            definitions = as_schema(root.get("$defs"))
            name = names[reference] = new_name(reference.removeprefix("#/"), definitions)
            root["$defs"] = {**definitions, name: found}
            waiting += (within := [schema for _, schema in schemas_in(found)])
            known |= set(map(id, within))
        if reference in names:
            schema["$ref"] = "#" + "".join(map(_escaped, ("$defs", names[reference])))


def _pointer(uri: str, places: dict[str, SchemaPath]) -> str | None:
    name, rest = (uri, "") if uri in places else urldefrag(uri)
    if name not in places or (rest and not rest.startswith("/")):
        return None
    return "#" + "".join(map(_escaped, places[name])) + rest


def _escaped(part: str | int) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1").replace("%", "%25")


def _joined(base: str, name: str) -> str:
    """As urljoin, which knows no relative references of other schemes, and raises ValueError."""
    try:
        return base + name if name.startswith("#") else urljoin(base, name)
    except ValueError:
        return name


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise GrammarError("the schema has a number that is too large")
    return value
