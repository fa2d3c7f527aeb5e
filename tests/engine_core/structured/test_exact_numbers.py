"""Numbers that a schema allows, against exact arithmetic: all and no others, or the schema is
refused."""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from operator import ge, gt, le, lt
from typing import Any

import pytest

from engine_core.structured.schema_tree import GrammarError
from tests.engine_core.structured.schemas import allows, compiled, fits

LARGE = [2**53 + d for d in (-1, 0, 1, 2)] + [2**63 + d for d in (-1, 0, 1)]
LARGE += [2**60 + 1, 2**64 - 1, 10**17, 10**18, 10**19, 1e16, 1e19, 1e22, 9007199254740993.0]
SMALL = [5, 2.5, 100, 999, 10**9, 10**15, 2**40 + 0.5] * 2
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {"minimum": ge, "maximum": le}
BOUNDS |= {"exclusiveMinimum": gt, "exclusiveMaximum": lt, "multipleOf": lambda x, b: x % b == 0}


def oracle(schema: dict[str, Any], value: Fraction) -> bool:
    bounds = [(BOUNDS[key], Fraction(str(schema[key]))) for key in BOUNDS.keys() & schema.keys()]
    whole = schema["type"] == "number" or value.denominator == 1
    return whole and all(holds(value, bound) for holds, bound in bounds)


def texts_around(schema: dict[str, Any]) -> list[str]:
    """Integers beside each bound, their negatives, and some fractions."""
    around = {0, 1, -1, 10**25}
    for keyword in BOUNDS.keys() & schema.keys():
        whole = int(Fraction(str(schema[keyword])))
        around |= {sign * (whole * times + d) for d in range(-3, 4) for sign in (1, -1)
                   for times in (1, 2, 10)}  # fmt: skip
    texts = [str(number) for number in sorted(around)]
    return texts + [f"{text}.5" for text in texts if text != "-0"]


def follows_exactly(schema: dict[str, Any]) -> bool:
    """False if the schema is refused. Raises AssertionError for a text that is wrongly allowed or
    wrongly forbidden."""
    try:
        grammar = compiled(schema)
    except GrammarError as error:
        assert str(error).startswith("$."), error
        return False
    for text in texts_around(schema):
        assert allows(grammar, text) == oracle(schema, Fraction(text)), (schema, text)
    return True


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("keyword", list(BOUNDS)[:4])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_bounds_are_exact_or_refused(kind: str, keyword: str, sign: int) -> None:
    followed = [large for large in LARGE if follows_exactly({"type": kind, keyword: sign * large})]
    assert 2**53 - 1 in followed
    assert (2**53 in followed) == (not keyword.startswith("exclusive"))


def test_two_bounds_are_exact_or_refused() -> None:
    draw = random.Random(3)
    followed = 0
    for _ in range(25):
        low, high = sorted(draw.choice([1, -1]) * draw.choice([*LARGE, *SMALL]) for _ in range(2))
        least = draw.choice(["minimum", "exclusiveMinimum"])
        most = draw.choice(["maximum", "exclusiveMaximum"])
        kind = draw.choice(["integer", "number"])
        followed += follows_exactly({"type": kind, least: low, most: high})
    assert followed > 4


@pytest.mark.parametrize(
    "divisor",
    [3, 7, 10**6, pytest.param(2**20, marks=pytest.mark.long), 9973, 2**20 + 1, 2**32 - 1, 1e19],
)
def test_divisors_are_exact_or_refused(divisor: float) -> None:
    followed = follows_exactly({"type": "integer", "multipleOf": divisor})
    assert followed == (divisor in (3, 7, 10**6, 2**20, 9973))


@pytest.mark.parametrize(
    ("divisors", "followed"),
    [
        ((6, 10), True), ((0.25, 1.5, 100), True), ((96, 125), True), ((32768, 32768), True),
        ((4096, 27), False), ((65536, 131_072), False), ((100_000, 100_000), False),
        ((0.01, 1000), False),
    ],
)  # fmt: skip
def test_divisors_that_meet_are_exact_or_refused(
    divisors: tuple[float, ...], followed: bool
) -> None:
    """In llguidance's uint32 the common multiple of 100,000 and itself became 14,100."""
    parts = [{"type": "number", "multipleOf": divisor} for divisor in divisors]
    first, *others = parts
    within = [{"properties": {"a": part}, "required": ["a"]} for part in parts]
    for schema in (
        {"allOf": parts},
        first | {"anyOf": [{"allOf": others}]},
        {"allOf": within, "type": "object"},
        first | {"$ref": "#/$defs/others", "$defs": {"others": {"allOf": others}}},
    ):
        if not followed:
            with pytest.raises(GrammarError, match=r"^\$\.\S*multipleOf: a common multiple of all"):
                compiled(schema)
            continue
        common = math.lcm(*(int(100 * divisor) for divisor in divisors)) / 100
        wrap = (lambda x: {"a": x}) if "type" in schema and "allOf" in schema else lambda x: x
        assert fits(schema, wrap(0))
        assert fits(schema, wrap(int(common)))
        assert not any(fits(schema, wrap(divisor)) for divisor in divisors if divisor != common)


def test_large_divisors_that_never_meet_are_followed() -> None:
    listed = {str(n): {"type": "integer", "multipleOf": n} for n in (65536, 100_000, 9973)}
    assert fits({"properties": listed}, {"65536": 131_072, "100000": 100_000, "9973": 9973})


@pytest.mark.parametrize("low", [2**63, 2**62])
def test_the_bounds_of_64_bits(low: int) -> None:
    """int64's own lower bound is beyond what llguidance reads."""
    largest = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert [fits(largest, value) for value in (2**63 - 1, 2**63)] == [True, False]
    with pytest.raises(GrammarError, match=r"\$\.minimum: -\d+ cannot be followed exactly"):
        compiled({"type": "integer", "minimum": -low})


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), 2**63, 1e19, 10**18])
def test_large_values_are_exact_or_refused(value: float) -> None:
    """A lower bound of int64 among them made llguidance overflow its stack."""
    for schema, path in (
        ({"const": value}, "const"),
        ({"enum": [1, value]}, "enum"),
        ({"enum": ["a", {"b": [value]}]}, "enum"),
        ({"$ref": "#/elsewhere", "elsewhere": {"const": value}}, "const"),
        ({"$id": "a:b", "$ref": "a:b#/elsewhere", "elsewhere": {"const": value}}, "const"),
    ):
        with pytest.raises(GrammarError, match=rf"\.{path}: .* cannot be followed exactly"):
            compiled(schema)


@pytest.mark.parametrize("value", [2**53 - 1, 2**53, 2**53 + 2, 10**16, -(10**16)])
def test_values_that_are_exact_are_followed(value: int) -> None:
    assert fits({"const": value}, value)
    assert not any(fits({"const": value}, value + d) for d in (-1, 1))
