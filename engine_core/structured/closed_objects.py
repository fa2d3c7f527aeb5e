"""Objects that list their properties have no others, unless the schema says something of others."""

from collections.abc import Iterator
from typing import Any

from engine_core.structured.grammar_error import GrammarError
from engine_core.structured.references import target
from engine_core.structured.schema_tree import (
    DEFINITIONS,
    Path,
    Schema,
    as_list,
    as_schema,
    mapped,
    new_name,
)

_OF_OTHERS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_BRANCHES = ("anyOf", "oneOf")
_IN_PLACE = ("allOf", *_BRANCHES)
_INCLUDES = frozenset({"$ref", *_IN_PLACE})
_CONSTRAINTS = _INCLUDES.union(
    _OF_OTHERS,
    "properties required type const enum items maxProperties minProperties prefixItems".split(),
)
_MOST_NAMES = 20_000

_Names = dict[str, None]


class ClosedObjects:
    """Closes the objects of one schema.

    All schemas that apply to one value make a *place*: one that nothing includes, and what it
    includes by `allOf`, `$ref`, `anyOf` and `oneOf`. A place is closed as a whole, behind all names
    in it, so that no part of it forbids the properties of another. So a part refers to an open copy
    of a definition.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = dict(as_schema(root.get("$defs")))
        self._open_copies: dict[str, str] = {}
        self._names_left = _MOST_NAMES

    def result(self) -> Schema:
        """The closed schema. Raises GrammarError if it has too many names."""
        root = self._place(self._root)
        copies = {name: self._definitions[name] for name in self._open_copies.values()}
        return root | {"$defs": as_schema(root.get("$defs")) | copies} if copies else root

    def _place(self, schema: Any) -> Any:
        """Close a schema that nothing includes."""
        if not isinstance(schema, dict):
            return schema
        place = as_schema(schema)
        constraints = [keyword for keyword in place if keyword in _CONSTRAINTS]
        if (
            ("properties" not in place and _INCLUDES.isdisjoint(place))
            or constraints == ["$ref"]
            or (constraints == ["allOf"] and len(place["allOf"]) == 1)
        ):
            return mapped(place, lambda _, child: self._place(child))
        return self._closed(place, {}, listed=False)

    def _opened(self, schema: Any) -> Any:
        """A part that others complete."""
        if not isinstance(schema, dict):
            return schema

        def change(path: Path, child: Any) -> Any:
            return self._opened(child) if path[0] in _IN_PLACE else self._place(child)

        return self._with_open_reference(mapped(as_schema(schema), change))

    def _closed(self, schema: Schema, others: _Names, *, listed: bool) -> Schema:
        """`schema` and what it includes, closed behind their names and `others`, if that or what
        includes it (`listed`) lists properties."""
        parts = list(self._tree(schema, ("allOf",)))
        listed = listed or any("properties" in part for part in parts)
        branched = any(schema.get(key) for key in _BRANCHES)
        open_ones = parts if branched else self._tree(schema, _IN_PLACE)
        if any(key in part for part in open_ones for key in _OF_OTHERS):
            return self._opened(schema)

        beside = {key: others | self._names(schema, skip=key) for key in _BRANCHES if key in schema}

        def change(path: Path, child: Any) -> Any:
            if names := beside.get(str(path[0])):
                if child is False:
                    return child
                return self._closed(as_schema(child), names, listed=listed)
            return self._opened(child) if path[0] == "allOf" else self._place(child)

        closed = self._with_open_reference(mapped(schema, change))
        if listed and not branched:
            self._shut(closed, others | self._names(schema))
        return closed

    def _shut(self, schema: Schema, names: _Names) -> None:
        self._names_left -= len(names)
        if self._names_left < 0:
            raise GrammarError("too many properties beside anyOf, oneOf or allOf")
        own = as_schema(schema.get("properties"))
        schema["properties"] = own | {name: {} for name in names if name not in own}
        schema["additionalProperties"] = False

    def _names(self, schema: Schema, skip: str | None = None) -> _Names:
        """All names in a place, but for its branches under the keyword `skip`."""
        names: _Names = {}
        for part in self._tree(schema, _IN_PLACE, skip):
            names |= dict.fromkeys(as_schema(part.get("properties")))
            names |= dict.fromkeys(as_list(part.get("required")))
        return names

    def _tree(
        self,
        schema: Schema,
        keywords: tuple[str, ...],
        skip: str | None = None,
        seen: set[str] | None = None,
    ) -> Iterator[Schema]:
        """`schema` and what it includes by these keywords and `$ref`, but not by its own `skip`."""
        seen = set() if seen is None else seen
        yield schema
        for keyword in keywords:
            for child in [] if keyword == skip else as_list(schema.get(keyword)):
                yield from self._tree(as_schema(child), keywords, seen=seen)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            yield from self._tree(target(self._root, reference), keywords, seen=seen)

    def _with_open_reference(self, schema: Schema) -> Schema:
        if isinstance(reference := schema.get("$ref"), str):
            schema["$ref"] = self._open_copy(reference)
        return schema

    def _open_copy(self, reference: str) -> str:
        found = target(self._root, reference)
        if found and reference not in self._open_copies:
            name = self._open_copies[reference] = new_name("open", self._definitions)
            self._definitions[name] = {}
            copy = self._opened(found)
            self._definitions[name] = {k: v for k, v in copy.items() if k not in DEFINITIONS}
        return f"#/$defs/{self._open_copies[reference]}" if found else reference
