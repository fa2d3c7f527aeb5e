"""JSON schemas as clients write them, put into what llguidance understands.

What is an annotation only is left out, and what has an equivalent is replaced by it.
"""

import json
from dataclasses import dataclass
from typing import Any

from engine_core.structured.closed_objects import ClosedObjects
from engine_core.structured.exact_numbers import (
    LARGEST_JOINED,
    inexact_keywords,
    unjoined_divisors,
)
from engine_core.structured.grammar_error import GrammarError
from engine_core.structured.references import hoist, localize, resolved
from engine_core.structured.schema_tree import (
    Path,
    Schema,
    as_list,
    as_schema,
    new_name,
    schemas_in,
)
from engine_core.structured.unique_items import MOST_VALUES, unique_lists
from engine_core.structured.valid_schema import check_valid

_FORMATS = frozenset("date-time time date duration uuid email hostname ipv4 ipv6 uri".split())
"""Those that llguidance follows. JSON Schema (2020-12, 7.2.1) has all others as annotations."""

_NO_LEAP_SECOND = "^[^:]*:[^:]*:[0-5]"
"""RFC 3339 has a second 60, which hardly any reader takes."""

_IN_EMAIL = (r"(?!\.)", r"(?!.*\.\.)")
"""Look-aheads of zod's pattern for e-mail addresses: `format: email` has no such dots anyway."""

_MOST_NAMES = 64

_MOST_ALTERNATIVES = 2000
"""No more lists follow upon so many. One of 16 values has 1372, which take 0.6 s to compile."""

_MAX_SHOWN = 40

_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})

_COUNTS = frozenset("minLength maxLength minItems maxItems minProperties maxProperties".split())

_UNHELD = frozenset(
    "not if contains dependentSchemas dependentRequired dependencies propertyNames uniqueItems "
    "unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef".split()
)
"""What is not followed where no rewriting has replaced it."""

_FOLLOWED = _COUNTS.union(
    "$defs $ref definitions type const enum allOf anyOf oneOf properties additionalProperties "
    "patternProperties required items additionalItems prefixItems pattern format minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf".split()
)

_UNJOINED = (
    f"a common multiple of all multipleOf is over {LARGEST_JOINED}, and allOf, anyOf, oneOf or "
    "$ref may join them"
)

_ONLY_BESIDE = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""What means something only beside another keyword."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """A keyword that cannot be followed, and why."""

    path: Path
    reason: str


def decoded(source: str) -> Schema:
    """The JSON schema `source`, with references as pointers. Raises GrammarError for what is no
    schema."""
    try:
        # Not msgspec's, which has no integers of more than 64 bits.
        root: Any = json.loads(source, parse_float=_finite, parse_constant=_finite)
        if not isinstance(root, dict):
            raise GrammarError("the schema is not an object")
        schema = as_schema(root)
        check_valid(schemas := schemas_in(schema))
        localize(schemas)
        if hoist(schema, schemas):
            check_valid(schemas_in(schema))
    except GrammarError:
        raise
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"the schema cannot be read: {error}") from None
    return schema


def rewritten(root: Schema, *, closed: bool) -> tuple[str, list[Unheld]]:
    """`root`, which is changed, as llguidance understands it; and what is left out of it.

    - Formats that are not followed are annotations.
    - Times have no second 60.
    - `propertyNames` with an enum are optional properties.
    - `uniqueItems` of an enum are alternatives.
    - If it is `closed`, objects that list properties have no others.
    - Annotations are left out, and `x-guidance`, by which a schema would set options of llguidance.

    Raises GrammarError for a schema that is too large or too deep.
    """
    try:
        rewriting = _Rewriting(root)
        result = rewriting.result()
        if closed:
            result = ClosedObjects(result).result()
        return json.dumps(result), rewriting.unheld
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise GrammarError("the schema has a number that is too large")
    return value


class _Rewriting:
    """Of one schema, in place."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = dict(as_schema(root.get("$defs")))
        self._unique_lists: dict[str, Schema] = {}
        self._alternatives_left = _MOST_ALTERNATIVES
        self.unheld: list[Unheld] = []

    def result(self) -> Schema:
        """The schema, rewritten."""
        schemas = schemas_in(self._root)
        for _, schema in schemas:
            if "unevaluatedProperties" in schema:
                _rewrite_unevaluated(schema)
        for path, schema in schemas:
            self._rewrite(schema, path)
        for path, schema in list(unjoined_divisors(schemas)):
            self._leave_out(schema, path, "multipleOf", _UNJOINED)
        if self._definitions:
            self._root["$defs"] = self._definitions
        return self._root

    def _leave_out(self, schema: Schema, path: Path, keyword: str, reason: str) -> None:
        del schema[keyword]
        self.unheld.append(Unheld((*path, keyword), reason))

    def _rewrite(self, schema: Schema, path: Path) -> None:
        _drop_idle(schema)
        if "format" in schema:
            _rewrite_format(schema)
        if "uniqueItems" in schema:
            self._rewrite_unique(schema, path)
        if "propertyNames" in schema:
            self._rewrite_names(schema, path)
        if not schema.get("$ref", "#").startswith("#"):
            self._leave_out(schema, path, "$ref", "nothing is found there")
        for keyword in list(inexact_keywords(schema)):
            self._leave_out(schema, path, keyword, _inexact(schema[keyword]))
        if unheld := _UNHELD & schema.keys():
            for keyword in sorted(unheld):
                self._leave_out(schema, path, keyword, "this keyword is not supported")
            _drop_idle(schema)
        if "oneOf" in schema:
            # Only with something before does llguidance see what references in branches are.
            keywords = {"minProperties": 0, **schema}
            schema.clear()
            schema |= keywords

    def _rewrite_unique(self, schema: Schema, path: Path) -> None:
        """Make a list of different values of an enum alternatives."""
        items = resolved(self._root, schema.get("items"))
        values = as_list(items.get("enum"))
        plain = schema.get("type") == "array" and not {"prefixItems", "contains"} & schema.keys()
        if not (plain and 0 < len(values) <= MOST_VALUES):
            return
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        kind = json.dumps([items, least, most])
        if kind not in self._unique_lists:
            if self._alternatives_left <= 0:
                self._leave_out(schema, path, "uniqueItems", "there are too many such lists")
                return
            lists = unique_lists(
                [value for index, value in enumerate(values) if value not in values[:index]],
                least,
                most,
                lambda some: self._defined(items | {"enum": some}),
            )
            self._unique_lists[kind] = self._defined(lists)
            self._alternatives_left -= len(as_list(lists.get("anyOf")))
        for keyword in {"uniqueItems", "items", "type", "minItems", "maxItems"} & schema.keys():
            del schema[keyword]
        schema["allOf"] = [*as_list(schema.get("allOf")), self._unique_lists[kind]]

    def _rewrite_names(self, schema: Schema, path: Path) -> None:
        """Make `propertyNames` optional properties, each with the schema of additional ones."""
        names = self._names(schema["propertyNames"])
        own = as_schema(schema.get("properties"))
        value = schema.get("additionalProperties", True)
        if names is None:
            reason = f"only an enum of at most {_MOST_NAMES} is served"
        elif "patternProperties" in schema:
            reason = "not served beside patternProperties"
        elif any(name not in names for name in as_list(schema.get("required"))):
            reason = "a required name is none of its enum"
        else:
            other = value if value is False else self._defined(value)
            offered = names if other is not False else [name for name in names if name in own]
            schema["properties"] = {each: own.get(each, other) for each in offered}
            schema["additionalProperties"] = False
            del schema["propertyNames"]
            return
        self._leave_out(schema, path, "propertyNames", reason)

    def _defined(self, schema: Any) -> Schema:
        """A reference to `schema`, which would otherwise be copied for each name, and within each
        copy again."""
        name = new_name("values", self._definitions)
        self._definitions[name] = schema
        return {"$ref": "#/$defs/" + name}

    def _names(self, schema: Any) -> list[str] | None:
        """The names that `propertyNames` allows; None if it is no list of a few names."""
        found = resolved(self._root, schema)
        values = [found["const"]] if "const" in found else as_list(found.get("enum"))
        others = found.keys() - {"enum", "const", "type", "title", "description"}
        if others or not 0 < len(values) <= _MOST_NAMES:
            return None
        return [value for value in values if isinstance(value, str)]


def _drop_idle(schema: Schema) -> None:
    """Drop what has no effect; make counts integers, which may be written as `2.0`."""
    for keyword in schema.keys() - _FOLLOWED - _UNHELD:
        if _ONLY_BESIDE.get(keyword) not in schema:
            del schema[keyword]
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    for keyword in _COUNTS & schema.keys():
        schema[keyword] = int(schema[keyword])


def _rewrite_unevaluated(schema: Schema) -> None:
    """Make `unevaluatedProperties` additional ones, where no other schema evaluates any."""
    if schema["unevaluatedProperties"] in (True, {}) or not _APPLICATORS & schema.keys():
        schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))


def _rewrite_format(schema: Schema) -> None:
    if schema["format"] not in _FORMATS:
        del schema["format"]
    elif schema["format"] == "email" and "pattern" in schema:
        for look_ahead in _IN_EMAIL:
            schema["pattern"] = schema["pattern"].replace(look_ahead, "", 1)
    elif schema["format"] in ("date-time", "time"):
        if "pattern" not in schema:
            schema["pattern"] = _NO_LEAP_SECOND
        else:
            schema["allOf"] = [*as_list(schema.get("allOf")), {"pattern": _NO_LEAP_SECOND}]


def _inexact(value: Any) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " ..."
    return f"{shown} cannot be followed exactly"
