"""Objects that list properties have no others, wherever in a schema they stand."""

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.engine_core.structured.schemas import allows, compiled, fits

A, B, C = ({"properties": {name: {"type": "integer"}}} for name in "abc")
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OWN, OTHER = {"a": 1}, {"a": 1, "z": 1}


class Point(BaseModel):
    x: int
    label: str | None = None


class Circle(BaseModel):
    kind: Literal["circle"]
    center: Point


class Group(BaseModel):
    kind: Literal["group"]
    parts: list["Circle | Group"]
    top: Annotated[Circle | Point, Field(union_mode="left_to_right")]
    by_name: dict[str, Point] = {}


REFERENCE = {"$ref": "#/$defs/object"}
PLACES: dict[str, Any] = {
    "definition": {"$defs": {"object": OBJECT}, **REFERENCE},
    "described reference": {"$defs": {"object": OBJECT}, "title": "T", **REFERENCE},
    "older definition": {"definitions": {"o": OBJECT}, "$ref": "#/definitions/o"},
    "anyOf": {"anyOf": [OBJECT, {"type": "null"}]},
    "oneOf": {"oneOf": [{"type": "null"}, OBJECT]},
    "anyOf in anyOf": {"anyOf": [{"type": "null"}, {"anyOf": [OBJECT, {"type": "string"}]}]},
    "allOf": {"allOf": [OBJECT], "title": "T"},
    "reference in allOf": {"$defs": {"object": OBJECT}, "allOf": [REFERENCE]},
    "by id": {"$defs": {"o": {"$id": "https://e.com/o", **OBJECT}}, "$ref": "https://e.com/o"},
    "by anchor": {"$defs": {"o": {"$anchor": "here", **OBJECT}}, "$ref": "#here"},
    "item": {"type": "array", "items": OBJECT},
    "first item": {"type": "array", "prefixItems": [OBJECT]},
    "property": {"type": "object", "properties": {"o": OBJECT}, "required": ["o"]},
    "additional": {"type": "object", "additionalProperties": OBJECT},
    "by pattern": {"type": "object", "patternProperties": {"^o": OBJECT}},
}
"""OBJECT somewhere in a schema: as the value itself, in a list, or in an object as `o`."""


@pytest.mark.parametrize("schema", PLACES.values(), ids=PLACES)
def test_it_is_closed_under_every_name(schema: Any) -> None:
    wraps = {"array": lambda inner: [inner], "object": lambda inner: {"o": inner}}
    wrap = wraps.get(schema.get("type"), lambda inner: inner)
    loose = compiled(schema, "loose_json_schema")
    assert allows(loose, json.dumps(wrap(OTHER)))
    assert loose.ignored == ()
    assert fits(schema, wrap(OWN))
    assert not fits(schema, wrap(OTHER))


@pytest.mark.parametrize(
    "says",
    [
        {"additionalProperties": True}, {"additionalProperties": {"type": "integer"}},
        {"unevaluatedProperties": True}, {"unevaluatedProperties": {"type": "integer"}},
        {"patternProperties": {"^z$": {"type": "integer"}}},
    ],
)  # fmt: skip
def test_what_is_said_of_others_is_obeyed(says: dict[str, Any]) -> None:
    for schema in (OBJECT | says, {"allOf": [OBJECT, says | C]}, {"anyOf": [OBJECT | says]}):
        assert fits(schema, OTHER), schema
    assert not fits(OBJECT | {"additionalProperties": {"type": "string"}}, OTHER)
    loose = compiled(OBJECT | {"unevaluatedProperties": False}, "loose_json_schema")
    assert [allows(loose, json.dumps(value)) for value in (OWN, OTHER)] == [True, False]


def test_an_object_that_lists_nothing_is_open() -> None:
    for schema in ({"type": "object"}, {}, {"type": "object", "required": ["a"]}):
        assert fits(schema, OTHER)
    assert not fits({"type": "object", "properties": {}}, OTHER)
    assert fits({"anyOf": [{"type": "object"}, B]}, OTHER)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"allOf": [A, B]}, {"a": 1, "b": 1}, {"a": 1, "c": 1}),
        ({"allOf": [A, B], **C}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "z": 1}),
        ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}, B]}, {"a": 1, "b": 1}, {"z": 1}),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A", **B}, {"a": 1, "b": 1}, {"a": 1, "z": 1}),
        ({"$defs": {"A": {"allOf": [A, B]}}, "allOf": [{"$ref": "#/$defs/A"}, C]},
         {"a": 1, "b": 1, "c": 1}, {"a": 1, "z": 1}),
        ({**A, "anyOf": [B, C]}, {"a": 1, "b": 1}, {"a": 1, "z": 1}),
        ({**A, "anyOf": [B, C]}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
        ({**A, "oneOf": [{**B, "required": ["b"], "type": "object"}, {"type": "null"}]},
         {"a": 1, "b": 1}, {"a": 1, "b": 1, "z": 1}),
        ({"allOf": [{"anyOf": [B, C]}, A]}, {"a": 1, "c": 1}, {"a": 1, "z": 1}),
        ({**A, "anyOf": [{"$ref": "#/$defs/B"}, {"required": ["a"]}], "$defs": {"B": B}},
         {"a": 1, "b": 1}, {"a": 1, "z": 1}),
        ({**A, "required": ["a", "x"]}, {"a": 1, "x": "any"}, {"a": 1, "x": 1, "z": 1}),
        ({"required": ["x"], "anyOf": [A, B]}, {"a": 1, "x": 2}, {"a": 1, "x": 2, "z": 1}),
        ({"allOf": [{"$ref": "#/$defs/N"}, B], "$defs": {"N": {"properties": {
            "a": {}, "next": {"$ref": "#/$defs/N"}}}}},
         {"a": 1, "next": {"a": 2}, "b": 1}, {"a": 1, "next": {"b": 2}}),
    ],
)  # fmt: skip
def test_parts_are_closed_together(schema: Any, good: Any, bad: Any) -> None:
    assert fits(schema, good)
    assert not fits(schema, bad)


def test_branches_by_the_dozen_do_not_multiply() -> None:
    """Each level's branches are closed once."""
    schema: dict[str, Any] = {"type": "null"}
    for depth in range(40):
        schema = {"anyOf": [schema, {"properties": {f"p{depth}": {}}, "type": "object"}]}
    assert fits(schema, {"p7": 1})
    assert not fits(schema, {"p7": 1, "p8": 1})


def test_models_of_pydantic_end() -> None:
    center = {"x": 1, "label": None}
    circle = {"kind": "circle", "center": center}
    inner = {"kind": "group", "parts": [], "top": {"x": 1}}
    group = {"kind": "group", "parts": [circle, inner], "top": circle, "by_name": {"p": {"x": 1}}}
    schema = Group.model_json_schema()
    assert fits(schema, group)
    for closed in (group, circle, center):
        closed["another"] = 1
        assert not fits(schema, group)
        del closed["another"]
