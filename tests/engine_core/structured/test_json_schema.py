"""Schemas as pydantic and others write them: what is generated is what they read, sets too."""

import datetime as dt
import enum
import itertools
import json
import pathlib
import random
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, Field, IPvAnyAddress, SecretStr, TypeAdapter, conint

from engine_core.messages import SamplingParams
from engine_core.structured.json_schema import rewritten, unique_lists
from engine_core.structured.matcher import Matcher
from engine_core.structured.schema_tree import GrammarError, Schema, decoded
from tests.engine_core.structured.schemas import TOKENIZER, allows, compiled, fits, next_tokens

CLOSING = ('"', "}", "]")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    born: dt.datetime
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None
    toys: dict[Color, int] = {}


PETS = Annotated[Cat | Dog, Field(discriminator="kind")]


def simplified(schema: Any) -> Any:
    return json.loads(rewritten(decoded(json.dumps(schema)), closed=False)[0])


def generated(schema: Any, draw: random.Random) -> str:
    """Random tokens of one character; strings and lists are closed when they become long."""
    start = compiled(schema)
    matcher = Matcher(start, SamplingParams(), 4096)
    said: list[int] = []
    while not matcher.complete:
        allowed = next_tokens(matcher)
        if start.end in allowed and len(said) > 5:
            break
        texts = {token: TOKENIZER.decode([token]) for token in allowed if token != start.end}
        plain = [token for token, text in texts.items() if len(text) == 1 and " " < text < "~"]
        closing = [token for token in plain if texts[token] in CLOSING]
        said.append(draw.choice(closing if closing and len(said) > 30 else plain or [*texts]))
        assert matcher.accept(said[-1])
    return TOKENIZER.decode(said)


@pytest.mark.parametrize(
    "kind",
    [
        pathlib.PurePath, SecretStr, bytes, IPvAnyAddress, Base64Bytes, dt.time, dt.date,
        dt.datetime, conint(gt=-5, lt=5), dict[Color, bool],
        dict[Literal["a", "b"], Color], tuple[int, bool], list[Color], int | None, PETS, list[PETS],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_generated_for_a_type_of_pydantic_is_read_by_it(kind: Any) -> None:
    adapter = TypeAdapter[Any](kind)
    schema, draw = adapter.json_schema(), random.Random(5)
    for _ in range(3):
        text = generated(schema, draw)
        json.loads(text)
        # A format that is an annotation leaves any text.
        if kind not in (IPvAnyAddress, Base64Bytes):
            adapter.validate_json(text)


@pytest.mark.parametrize("name", ["path", "password", "ipvanyaddress", "uri-reference", "", "date"])
def test_a_format_that_is_not_followed_is_an_annotation(name: str) -> None:
    schema = {"type": "string", "format": name}
    followed = name == "date"
    assert simplified(schema) == (schema if followed else {"type": "string"})
    assert fits(schema, "2024-02-29")
    assert fits({"items": schema, "type": "array"}, ["2024-02-30"]) == (not followed)


@pytest.mark.parametrize("more", [{}, {"pattern": "Z$"}, {"pattern": "Z$", "allOf": [{}]}])
def test_no_minute_has_61_seconds(more: dict[str, Any]) -> None:
    moment = {"type": "string", "format": "date-time", **more}
    seconds = [fits(moment, f"2024-02-29T23:59:{end}") for end in ("59Z", "60Z", "59+01:00")]
    assert seconds == [True, False, not more]
    assert not fits({"type": "string", "format": "time"}, "23:59:60Z")


def test_names_of_an_enum_become_optional_properties() -> None:
    schema = {
        "type": "object",
        "propertyNames": {"enum": ["a", "b", "c"]},
        "properties": {"a": {"type": "boolean"}, "z": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    }
    for value in ({}, {"a": True}, {"b": 1}, {"a": False, "b": 2, "c": 3}):
        assert fits(schema, value)
    for value in ({"a": 1}, {"b": True}, {"z": None}, {"d": 1}):
        assert not fits(schema, value)
    assert not fits(schema | {"required": ["b"]}, {"a": True})
    closed = schema | {"additionalProperties": False}
    assert [fits(closed, value) for value in ({"a": True}, {"b": 1})] == [True, False]


def test_names_within_names_do_not_multiply() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(12):
        names = {"enum": [f"name-{number}" for number in range(64)]}
        schema = {"type": "object", "propertyNames": names, "additionalProperties": schema}
    assert len(json.dumps(simplified(schema))) < 12 * 64 * 60


@pytest.mark.parametrize(
    "names",
    [
        {"pattern": "^a"}, {"enum": []}, {"enum": [str(n) for n in range(65)]}, True,
        {"enum": ["a"], "maxLength": 3}, {"$ref": "#/$defs/none"}, {"$ref": "#/$defs/loop"},
    ],
    ids=str,
)  # fmt: skip
def test_other_names_are_refused(names: Any) -> None:
    loop = {"$defs": {"loop": {"$ref": "#/$defs/loop"}}}
    with pytest.raises(GrammarError, match="propertyNames: only an enum of at most 64"):
        compiled({"type": "object", "propertyNames": names, **loop})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use anyOf"),
        ({"type": "integer", "minimum": 1e20}, r"\$.minimum: 1e\+20 cannot be followed exactly"),
        ({"type": "number", "exclusiveMaximum": -(10**40)}, r"\$.exclusiveMaximum: -1000"),
        ({"type": "number", "maximum": 10**400}, "out of range"),
        ({"propertyNames": {"const": "a"}, "required": ["b"]}, "propertyNames: a required name"),
        ({"propertyNames": {"const": "a"}, "patternProperties": {}}, "beside patternProperties"),
    ],
)
def test_what_cannot_be_followed_is_named(schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        compiled(schema)


def test_data_and_names_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "format": {"const": {"format": "path"}},
            "x-guidance": {"enum": [{"format": 1}]},
        },
        "required": ["format", "x-guidance"],
        "additionalProperties": False,
    }
    assert simplified(schema | {"default": {"format": "path"}, "x-guidance": {}}) == schema
    assert fits(schema, {"format": {"format": "path"}, "x-guidance": {"format": 1}})


@pytest.mark.parametrize("source", ["", "{", "1e400x", '{"a":' * 2000, '{"minimum": 1e400}'])
def test_what_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(GrammarError):
        decoded(source)


keywords = st.sampled_from(
    ["format", "propertyNames", "properties", "items", "allOf", "$defs", "required", "enum", "$ref"]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=4),
    max_leaves=12,
)


@given(schema=junk)
def test_whatever_is_sent_is_compiled_or_refused(schema: Any) -> None:
    try:
        compiled(schema)
    except GrammarError:
        return


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


FIRST_SCHEMAS = """
import sys, threading
from engine_core.structured.schema_tree import decoded
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
def compile():
    barrier.wait()
    decoded('{"type": "object", "properties": {"a": {"minLength": 3}}}')
threads = [threading.Thread(target=compile) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_the_first_schemas_of_a_process_may_come_at_once() -> None:
    """The threads that compiled them ended the engine: msgspec learnt a type in two at once."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", FIRST_SCHEMAS], check=True)
