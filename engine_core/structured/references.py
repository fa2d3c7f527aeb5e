"""References between schemas, all as JSON pointers from the root."""

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from engine_core.structured.schema_tree import (
    Path,
    Schema,
    as_list,
    as_schema,
    new_name,
    schemas_in,
)

_BASE = "http://root.invalid/"
_NAMES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
_MOST_STEPS = 64


def localize(schemas: list[tuple[Path, Schema]]) -> None:
    """Make references by `$id` or anchor pointers from the root, in place, and drop `$id`s and
    anchors. References to what is not there stay as they are."""
    if not any(not _NAMES.isdisjoint(schema) for _, schema in schemas):
        return
    places: dict[str, Path] = {_BASE: ()}
    bases: dict[Path, str] = {(): _BASE}
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


def hoist(root: Schema, schemas: list[tuple[Path, Schema]]) -> bool:
    """Give definitions to schemas that are only found by references, as those of
    `#/components/schemas`, in place. Returns whether there are any; `schemas` are all others."""
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
    return bool(names)


def resolved(root: Any, schema: Any) -> Schema:
    """The schema that a chain of references leads to; an empty one if there is none."""
    found = as_schema(schema)
    for _ in range(_MOST_STEPS):
        if not isinstance(reference := found.get("$ref"), str):
            return found
        found = target(root, reference)
    return {}


def target(root: Any, reference: str) -> Schema:
    """The schema at a pointer from the root; an empty one if there is none."""
    found = root if reference.startswith("#") else None
    for part in _parts(reference.removeprefix("#")):
        items = as_list(found)
        if part.isdecimal() and int(part) < len(items):
            found = items[int(part)]
        else:
            found = as_schema(found).get(part)
    return as_schema(found)


def _pointer(uri: str, places: dict[str, Path]) -> str | None:
    name, rest = (uri, "") if uri in places else urldefrag(uri)
    if name not in places or (rest and not rest.startswith("/")):
        return None
    return "#" + "".join(map(_escaped, places[name])) + rest


def _escaped(part: str | int) -> str:
    return "/" + str(part).replace("~", "~0").replace("/", "~1").replace("%", "%25")


def _parts(pointer: str) -> list[str]:
    parts = pointer.split("/")[1:]
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in parts]


def _joined(base: str, name: str) -> str:
    """As urljoin, which knows no relative references of other schemes, and raises ValueError."""
    try:
        return base + name if name.startswith("#") else urljoin(base, name)
    except ValueError:
        return name
