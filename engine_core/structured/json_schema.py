"""JSON schemas as clients write them, put into what llguidance understands."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any, NamedTuple, TypeGuard

from engine_core.structured.schema_tree import (
    COUNTS,
    DEFINITIONS,
    GrammarError,
    Schema,
    SchemaPath,
    as_list,
    as_schema,
    mapped,
    new_name,
    resolved,
    schemas_in,
    target,
)

_FORMATS = frozenset("date-time time date duration uuid email hostname ipv4 ipv6 uri".split())
"""Formats that llguidance follows. JSON Schema (2020-12, 7.2.1) has all others as annotations."""

_NO_LEAP_SECOND = "^[^:]*:[^:]*:[0-5]"
"""RFC 3339 has a second 60, which hardly any reader takes."""

_IN_EMAIL = (r"(?!\.)", r"(?!.*\.\.)")
"""Look-aheads of zod's pattern for e-mail addresses: `format: email` has no such dots anyway."""

_MOST_NAMES = 64

_MOST_ALTERNATIVES = 2000
"""No more lists follow upon so many. One of 16 values has 1372, which take 0.6 s to compile."""

_MAX_SHOWN = 40

_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})

_UNHELD = frozenset(
    "not if contains dependentSchemas dependentRequired dependencies propertyNames uniqueItems "
    "unevaluatedItems unevaluatedProperties $dynamicRef $recursiveRef".split()
)
"""Keywords that are not followed where no rewriting has replaced them."""

_FOLLOWED = COUNTS.union(
    "$defs $ref definitions type const enum allOf anyOf oneOf properties additionalProperties "
    "patternProperties required items additionalItems prefixItems pattern format minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf".split()
)


class Unheld(NamedTuple):
    path: SchemaPath
    reason: str


def rewritten(root: Schema, *, closed: bool) -> tuple[str, list[Unheld]]:
    """`root`, which is changed, as llguidance understands it, and what is left out of it.

    Formats that are not followed are annotations, times have no second 60, `propertyNames` with an
    enum are optional properties, and `uniqueItems` of an enum are alternatives. If it is `closed`,
    objects that list properties have no others. Annotations go, and `x-guidance`, which would set
    options of llguidance. Raises GrammarError for a schema that is too large or too deep.
    """
    try:
        rewriting = _Rewriting(root)
        result = rewriting.result()
        if closed:
            result = _ClosedObjects(result).result()
        return json.dumps(result), rewriting.unheld
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


class _Rewriting:
    """The rewriting of one schema, in place."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = dict(as_schema(root.get("$defs")))
        self._unique_lists: dict[str, Schema] = {}
        self._alternatives_left = _MOST_ALTERNATIVES
        self.unheld: list[Unheld] = []

    def result(self) -> Schema:
        schemas = schemas_in(self._root)
        for path, schema in schemas:
            self._rewrite(schema, path)
        for path, schema in list(_unjoined_divisors(schemas)):
            reason = f"a common multiple of all multipleOf is over {_LARGEST_JOINED}: they may meet"
            self._leave_out(schema, path, "multipleOf", reason)
        if self._definitions:
            self._root["$defs"] = self._definitions
        return self._root

    def _leave_out(self, schema: Schema, path: SchemaPath, keyword: str, reason: str) -> None:
        del schema[keyword]
        self.unheld.append(Unheld((*path, keyword), reason))

    def _rewrite(self, schema: Schema, path: SchemaPath) -> None:
        _drop_idle(schema)
        if "format" in schema:
            _rewrite_format(schema)
        if "uniqueItems" in schema:
            self._rewrite_unique(schema, path)
        if "propertyNames" in schema:
            self._rewrite_names(schema, path)
        if not schema.get("$ref", "#").startswith("#"):
            self._leave_out(schema, path, "$ref", "nothing is found there")
        for keyword in list(_inexact_keywords(schema)):
            self._leave_out(schema, path, keyword, _inexact(schema[keyword]))
        for keyword in sorted(_UNHELD & schema.keys()):
            self._leave_out(schema, path, keyword, "this keyword is not supported")
        if "oneOf" in schema:
            # Only with something before does llguidance see what references in branches are.
            keywords = {"minProperties": 0, **schema}
            schema.clear()
            schema |= keywords

    def _rewrite_unique(self, schema: Schema, path: SchemaPath) -> None:
        """Make a list of different values of an enum alternatives."""
        items = resolved(self._root, schema.get("items"))
        values = as_list(items.get("enum"))
        plain = schema.get("type") == "array" and not {"prefixItems", "contains"} & schema.keys()
        if not (plain and 0 < len(values) <= _MOST_VALUES):
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

    def _rewrite_names(self, schema: Schema, path: SchemaPath) -> None:
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
        """A reference to `schema`: copies for each name would multiply, one within another."""
        name = new_name("values", self._definitions)
        self._definitions[name] = schema
        return {"$ref": "#/$defs/" + name}

    def _names(self, schema: Any) -> list[str] | None:
        """The names that `propertyNames` allows. None if it is no list of a few names."""
        found = resolved(self._root, schema)
        values = [found["const"]] if "const" in found else as_list(found.get("enum"))
        others = found.keys() - {"enum", "const", "type", "title", "description"}
        if others or not 0 < len(values) <= _MOST_NAMES:
            return None
        return [value for value in values if isinstance(value, str)]


def _drop_idle(schema: Schema) -> None:
    """Drop what has no effect. Make counts integers, which may be written as `2.0`."""
    for keyword in schema.keys() - _FOLLOWED - _UNHELD:
        del schema[keyword]
    if "unevaluatedProperties" in schema:
        # They are additional ones where no other schema evaluates any.
        idle = schema["unevaluatedProperties"] in (True, {})
        if idle or not _APPLICATORS & schema.keys():
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    for keyword in COUNTS & schema.keys():
        schema[keyword] = int(schema[keyword])


def _rewrite_format(schema: Schema) -> None:
    if schema["format"] not in _FORMATS:
        del schema["format"]
    elif schema["format"] == "email" and "pattern" in schema:
        for look_ahead in _IN_EMAIL:
            schema["pattern"] = schema["pattern"].replace(look_ahead, "", 1)
    elif schema["format"] in ("date-time", "time"):
        schema["allOf"] = [*as_list(schema.get("allOf")), {"pattern": _NO_LEAP_SECOND}]


def _inexact(value: Any) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " ..."
    return f"{shown} cannot be followed exactly"


_OF_OTHERS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_BRANCHES = ("anyOf", "oneOf")
_IN_PLACE = ("allOf", *_BRANCHES)
_INCLUDES = frozenset({"$ref", *_IN_PLACE})
_CONSTRAINTS = _INCLUDES.union(
    _OF_OTHERS,
    "properties required type const enum items maxProperties minProperties prefixItems".split(),
)
_MOST_CLOSED_NAMES = 20_000

_Names = dict[str, None]


class _ClosedObjects:
    """Closes the objects of one schema.

    All schemas that apply to one value make a *place*: one that nothing includes, and what it
    includes by `allOf`, `$ref`, `anyOf` and `oneOf`. A place is closed as a whole, behind all names
    in it. So its parts stay open, and refer to open copies of definitions.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = dict(as_schema(root.get("$defs")))
        self._open_copies: dict[str, str] = {}
        self._names_left = _MOST_CLOSED_NAMES

    def result(self) -> Schema:
        """The closed schema. Raises GrammarError if it has too many names."""
        root = self._place(self._root)
        copies = {name: self._definitions[name] for name in self._open_copies.values()}
        return root | {"$defs": as_schema(root.get("$defs")) | copies} if copies else root

    def _place(self, place: Schema) -> Schema:
        """Close a schema that nothing includes."""
        constraints = [keyword for keyword in place if keyword in _CONSTRAINTS]
        if (
            ("properties" not in place and _INCLUDES.isdisjoint(place))
            or constraints == ["$ref"]
            or (constraints == ["allOf"] and len(place["allOf"]) == 1)
        ):
            return mapped(place, lambda _, child: self._place(child))
        return self._closed(place, {}, listed=False)

    def _part(self, schema: Schema, beside: Mapping[str, _Names], *, listed: bool) -> Schema:
        """A part that others complete. Its branches are closed behind the names `beside` them."""

        def change(path: SchemaPath, child: Schema) -> Schema:
            if names := beside.get(str(path[0])):
                return self._closed(child, names, listed=listed)
            is_open = path[0] in _IN_PLACE and path[0] not in beside
            return self._opened(child) if is_open else self._place(child)

        part = mapped(schema, change)
        if isinstance(reference := part.get("$ref"), str):
            part["$ref"] = self._open_copy(reference)
        return part

    def _opened(self, schema: Schema) -> Schema:
        return self._part(schema, {}, listed=False)

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
        closed = self._part(schema, beside, listed=listed)
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
        """The names in a place, but for its branches under the keyword `skip`."""
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

    def _open_copy(self, reference: str) -> str:
        found = target(self._root, reference)
        if found and reference not in self._open_copies:
            name = self._open_copies[reference] = new_name("open", self._definitions)
            self._definitions[name] = {}
            copy = self._opened(found)
            self._definitions[name] = {k: v for k, v in copy.items() if k not in DEFINITIONS}
        return f"#/$defs/{self._open_copies[reference]}" if found else reference


_Number = int | float

_EXACT = 2**53
"""Every integer below is a float64, and so is the next one."""

_MOST_DIGITS = 10**17
"""Integers up to here that are float64 are written with all their digits."""

_INT64_MAX = 2**63 - 1
"""Taken for what it is, since its float64 is clipped to it."""

_MOST_REMAINDERS = 10_000
"""An automaton has a state for each remainder of a division: more take seconds to compile."""

_LARGEST_DIVISOR = 2**28
"""Ten times its remainders are uint32."""

_LARGEST_JOINED = 2**16 - 1
"""Divisors of one number are multiplied as uint32, even if both are their common multiple."""


def _unjoined_divisors(
    schemas: list[tuple[SchemaPath, Schema]],
) -> Iterator[tuple[SchemaPath, Schema]]:
    """The schemas whose `multipleOf` would not be joined exactly with those of others.

    Two may apply to one number wherever a schema includes another and has more in it.
    """
    divided = [entry for entry in schemas if "multipleOf" in entry[1]]
    if not divided or not any(_joins(schema) for _, schema in schemas):
        return
    common = scale = 1
    for path, schema in divided:
        divisor, finer = Fraction(str(schema["multipleOf"])), scale
        while (divisor * finer).denominator > 1:
            finer *= 10
        joined = math.lcm(common * finer // scale, int(divisor * finer))
        if joined > _LARGEST_JOINED:
            yield path, schema
        else:
            common, scale = joined, finer


def _joins(schema: Schema) -> bool:
    beside = schema.keys() - set(DEFINITIONS)
    several = len(beside) > 1 or len(as_list(schema.get("allOf"))) > 1
    return several and not _INCLUDES.isdisjoint(beside)


def _is_number(value: Any) -> TypeGuard[_Number]:
    """Whether `value` is a number of JSON: `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(value: _Number) -> bool:
    return abs(value) < _EXACT or (abs(value) <= _MOST_DIGITS and value == float(value))


def _is_followed_divisor(value: _Number) -> bool:
    coefficient = Fraction(str(value))
    while coefficient.denominator > 1:
        coefficient *= 10
    whole = coefficient.numerator
    without_2_and_5 = whole // math.gcd(whole, 10**28)
    return whole < _LARGEST_DIVISOR and without_2_and_5 <= _MOST_REMAINDERS


def _numbers(value: Any) -> Iterator[_Number]:
    if _is_number(value):
        yield value
    for each in as_list(value) or as_schema(value).values():
        yield from _numbers(each)


_IS_FOLLOWED: Mapping[str, Callable[[_Number], bool]] = {
    "minimum": _is_exact,
    "maximum": lambda value: _is_exact(value) or value == _INT64_MAX,
    "exclusiveMinimum": lambda value: abs(value) < _EXACT,
    "exclusiveMaximum": lambda value: abs(value) < _EXACT,
    "multipleOf": _is_followed_divisor,
    "const": _is_exact,
    "enum": _is_exact,
}
"""Whether a number in a keyword's value is followed exactly."""


def _inexact_keywords(schema: Schema) -> Iterator[str]:
    """The keywords of `schema` whose numbers would not be followed exactly."""
    for keyword, is_followed in _IS_FOLLOWED.items():
        value = schema.get(keyword)
        # Draft 4 writes `exclusiveMinimum: true` beside `minimum`.
        value = schema.get(keyword.replace("exclusiveM", "m")) if value is True else value
        if not all(map(is_followed, _numbers(value))):
            yield keyword


_MOST_VALUES = 16

_Pick = list[tuple[int, ...]]
"""A list with one value of each tuple, in this order."""

_BLOCK = 4

_PICKS: list[_Pick] = [
    [],
    [(0, 1, 2, 3)],
    *([(0, 1), (2, 3)], [(0, 2), (1, 3)]),
    *([(0, 1), (2,), (3,)], [(0,), (1,), (2, 3)]),
    [(0,), (1,), (2,), (3,)],
]
"""Each set of four values is what one of these picks."""

_BEGINNINGS: list[_Pick] = [
    [(0,), (1,), (2,), (3,)],
    [(1, 2), (3,), (0,)],
    [(0, 3), (2,), (1,)],
    [(0, 1), (2, 3)],
]
"""Each set of four values is what the beginning of one of these picks."""


def unique_lists(
    values: list[Any], least: int, most: int | None, define: Callable[[list[Any]], Schema]
) -> Schema:
    """A schema for the lists of `least` to `most` of these values, none of them twice.

    Each set of values has an order in it, roughly that of `values`. `define` returns a reference.
    """
    blocks = [range(at, min(at + _BLOCK, len(values))) for at in range(0, len(values), _BLOCK)]
    picks_of_blocks = [_within(block, _PICKS) for block in blocks[:-1]]
    picks_of_blocks.append(_within(blocks[-1], _BEGINNINGS))

    @cache
    def one_of(choices: tuple[int, ...]) -> Schema:
        return define([values[choice] for choice in choices])

    alternatives: list[Schema] = []
    for *picks, last in product(*picks_of_blocks):
        first = [choices for pick in picks for choices in pick]
        items = [*first, *last]
        low, high = max(len(first), least), min(len(items), len(items) if most is None else most)
        if low <= high:
            places = [one_of(choices) for choices in items[:high]]
            alternatives.append(
                {"type": "array", "prefixItems": places, "minItems": low, "items": False}
            )
    return {"anyOf": alternatives} if alternatives else {"enum": []}


def _within(block: range, picks: list[_Pick]) -> list[_Pick]:
    """The picks as they are in a block, which may have fewer values."""
    found: list[_Pick] = []
    for pick in picks:
        present = [tuple(block[i] for i in choices if i < len(block)) for choices in pick]
        if (used := [choices for choices in present if choices]) not in found:
            found.append(used)
    return found
