"""Numbers in a schema that llguidance, which reads them as float64 and int64, does not follow
exactly."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, TypeGuard

from engine_core.structured.schema_tree import (
    DEFINITIONS,
    Path,
    Schema,
    as_list,
    as_schema,
)

Number = int | float

_WITH_NUMBERS = frozenset(
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf const enum".split()
)

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

LARGEST_JOINED = 2**16 - 1
"""Divisors of one number are multiplied as uint32, even if both are their common multiple."""

_JOINS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def inexact_keywords(schema: Schema) -> Iterator[str]:
    """The keywords of `schema` whose numbers would not be followed exactly."""
    if _WITH_NUMBERS.isdisjoint(schema):
        return
    for keyword in ("minimum", "maximum"):
        value = schema.get(keyword)
        followed = keyword == "maximum" and isinstance(value, int) and value == _INT64_MAX
        if is_number(value) and not _is_exact(value) and not followed:
            yield keyword
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        value = schema.get(keyword)
        value = schema.get(bound) if value is True else value
        if is_number(value) and abs(value) >= _EXACT:
            yield keyword
    if is_number(value := schema.get("multipleOf")) and not _is_followed_divisor(value):
        yield "multipleOf"
    for keyword in ("const", "enum"):
        if not all(map(_is_exact, _numbers(schema.get(keyword)))):
            yield keyword


def unjoined_divisors(schemas: list[tuple[Path, Schema]]) -> Iterator[tuple[Path, Schema]]:
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
        if joined > LARGEST_JOINED:
            yield path, schema
        else:
            common, scale = joined, finer


def _joins(schema: Schema) -> bool:
    beside = schema.keys() - set(DEFINITIONS)
    several = len(beside) > 1 or len(as_list(schema.get("allOf"))) > 1
    return several and not _JOINS.isdisjoint(beside)


def is_number(value: Any) -> TypeGuard[Number]:
    """Whether `value` is a number of JSON: `true` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(value: Number) -> bool:
    return abs(value) < _EXACT or (abs(value) <= _MOST_DIGITS and value == float(value))


def _is_followed_divisor(value: Number) -> bool:
    coefficient = Fraction(str(value))
    while coefficient.denominator > 1:
        coefficient *= 10
    rest = coefficient.numerator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return coefficient < _LARGEST_DIVISOR and rest <= _MOST_REMAINDERS


def _numbers(value: Any) -> Iterator[Number]:
    if is_number(value):
        yield value
    for each in as_list(value) or as_schema(value).values():
        yield from _numbers(each)
