"""Schemas as pydantic and others write them: what is generated is what they read."""

import datetime as dt
import enum
import json
import pathlib
import random
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, Field, IPvAnyAddress, SecretStr, TypeAdapter, conint

from engine_core.messages import SamplingParams
from engine_core.structured.json_schema import rewritten
from engine_core.structured.matcher import Matcher
from engine_core.structured.schema_tree import GrammarError, decoded
from tests.engine_core.structured.schemas import TOKENIZER, compiled, fits, next_tokens

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
