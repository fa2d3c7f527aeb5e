"""Lists of different values of an enum."""

import itertools
import json
from typing import Any

import pytest

from engine_core.structured.json_schema import rewritten, unique_lists
from engine_core.structured.schema_tree import GrammarError, Schema, decoded
from tests.engine_core.structured.schemas import allows, compiled, fits

BOUNDS = [(0, 2), (2, 3), (3, 3), (1, 9), (6, None)]
UNIQUE: Schema = {"type": "array", "uniqueItems": True}


def lists(values: list[Any], least: int = 0, most: int | None = None) -> set[tuple[Any, ...]]:
    """All that the schema allows."""
    found: set[tuple[Any, ...]] = set()
    for each in unique_lists(values, least, most, lambda choices: {"enum": choices})["anyOf"]:
        places = [place["enum"] for place in each["prefixItems"]]
        for length in range(each["minItems"], len(places) + 1):
            found |= set(itertools.product(*places[:length]))
    return found


@pytest.mark.parametrize(
    ("count", "least", "most"),
    [*((count, 0, None) for count in range(1, 12)), *((6, *bounds) for bounds in BOUNDS)],
)
def test_each_set_has_an_order_and_no_list_has_a_value_twice(
    count: int, least: int, most: int | None
) -> None:
    found = lists(list(range(count)), least, most)
    assert all(len(set(each)) == len(each) for each in found)
    assert {frozenset(each) for each in found} == {
        frozenset(some)
        for size in range(least, min(count, most or count) + 1)
        for some in itertools.combinations(range(count), size)
    }


def test_a_set_of_an_enum_compiles_and_others_are_refused() -> None:
    tags = UNIQUE | {"items": {"$ref": "#/$defs/Tag"}, "minItems": 1}
    schema: Schema = {"type": "object", "properties": {"tags": tags}, "required": ["tags"]}
    schema |= {"$defs": {"Tag": {"enum": [f"tag-{i}" for i in range(16)]}}}
    grammar = compiled(schema)
    good = [[0], [15], [0, 5, 10], [3, 4, 12, 13, 14, 15], [*range(16)]]
    for numbers in (*good, [], [0, 0], [0, 5, 5], [16]):
        text = json.dumps({"tags": [f"tag-{i}" for i in numbers]})
        assert allows(grammar, text) == (numbers in good), numbers
    schema["$defs"]["Tag"]["enum"].append("tag-16")
    with pytest.raises(GrammarError, match=r"\$\.properties\.tags\.uniqueItems: "):
        compiled(schema)


def test_a_list_of_one_or_no_value() -> None:
    one = UNIQUE | {"items": {"enum": ["a"]}}
    assert [fits(one, value) for value in (["a"], [], ["a", "a"])] == [True, True, False]
    assert fits(one | {"uniqueItems": False}, ["a", "a"])
    with pytest.raises(GrammarError, match="Unsatisfiable"):
        compiled(one | {"minItems": 2})


def unique(first: int, **keywords: Any) -> Schema:
    return UNIQUE | {"items": {"enum": [*range(first, first + 16)]}, **keywords}


def test_a_set_that_is_used_often_is_compiled_once() -> None:
    """Thirty copies were a schema of 15 MB, which was refused after 15 s."""
    listed = {f"p{n}": unique(0, description=f"{n}") for n in range(30)}
    grammar = compiled({"properties": listed, "type": "object"})
    assert allows(grammar, json.dumps({"p0": [0, 1], "p29": [14, 15]}))
    assert not allows(grammar, json.dumps({"p0": [0, 1], "p29": [15, 15]}))


def test_too_many_different_sets_are_refused_or_left_out() -> None:
    schema = {"properties": {f"p{n}": unique(n) for n in range(3)}}
    with pytest.raises(GrammarError, match=r"^\$\.properties\.p2\.uniqueItems: there are too many"):
        compiled(schema)
    text, (left_out,) = rewritten(decoded(json.dumps(schema)), closed=False)
    assert left_out.path == ("properties", "p2", "uniqueItems")
    assert json.loads(text)["properties"]["p2"] == {"type": "array", "items": unique(2)["items"]}
