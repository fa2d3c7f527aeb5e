"""The keyword of a schema that is at fault, and what `strict: false` leaves out."""

import json
import re
import time
from typing import Any

import pytest

from engine_core.messages import Grammar
from engine_core.structured import grammar
from engine_core.structured.schema_tree import GrammarError
from tests.engine_core.structured.schemas import COMPILER, allows, compiled

EXPLODING = "^(a{1,1000}){1,1000}$"
FAULTS: list[tuple[Any, str]] = [
    ({"not": {"type": "null"}}, "$.not"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {}}, "$.if"),
    ({"contains": {"const": 1}, "minContains": 2}, "$.contains"),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, "$.dependentSchemas"),
    ({"dependentRequired": {"a": ["b"]}}, "$.dependentRequired"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "$.uniqueItems"),
    ({"type": "array", "unevaluatedItems": False}, "$.unevaluatedItems"),
    ({"propertyNames": {"pattern": "^a"}}, "$.propertyNames"),
    ({"properties": {}, "anyOf": [{}], "unevaluatedProperties": False}, "$.unevaluatedProperties"),
    ({"$dynamicAnchor": "x", "$dynamicRef": "#x"}, "$.$dynamicRef"),
    ({"type": "string", "pattern": "(?=a)a"}, "$.pattern"),
    ({"type": "string", "pattern": EXPLODING}, "$.pattern"),
    ({"patternProperties": {EXPLODING: {}}}, "$.patternProperties"),
    ({"patternProperties": {"a": {}, "aa": {}}}, "$.patternProperties"),
    ({"type": "integer", "minimum": 2**53 + 1}, "$.minimum"),
    ({"type": "number", "multipleOf": 0.07}, "$.multipleOf"),
    ({"type": "string", "minLength": 9, "maxLength": 3}, "$.maxLength"),
    ({"type": "string", "maxLength": 2**40}, "$.maxLength"),
    ({"const": 2**63}, "$.const"),
    ({"enum": []}, "$.enum"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "$.oneOf"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "$.allOf[1].type"),
    ({"type": "object", "additionalProperties": False, "required": ["b"]}, "$.required"),
    ({"$ref": "https://example.com/a.json"}, "$.$ref"),
    ({"$ref": "json-schema:///#/default", "default": {"const": -(2**63)}}, "$.$ref"),
    ({"$ref": "#/$defs/none"}, "$.$ref"),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}, "$.minProperties"),
]


def within(schema: Any) -> tuple[Any, str]:
    """A schema that holds another in two places that have one path."""
    email = {"type": "object", "properties": {"mail, to": schema, "n": {"type": "integer"}}}
    whole = {"$defs": {"person": email}, "type": "object", "required": ["people"], "properties": {
        "n": {"type": "integer"},
        "people": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1},
    }}  # fmt: skip
    return whole, '$.$defs.person.properties["mail, to"]'


def refused_by(schema: Any, path: str) -> str:
    """The message."""
    with pytest.raises(GrammarError) as caught:
        compiled(schema)
    assert str(caught.value).startswith(f"{path}: "), caught.value
    assert compiled(schema, "loose_json_schema").ignored == (path,)
    return str(caught.value)


@pytest.mark.parametrize(("schema", "path"), FAULTS, ids=[path for _, path in FAULTS])
def test_a_fault_is_refused_by_its_path_or_left_out(schema: Any, path: str) -> None:
    message = refused_by(schema, path)
    # What a property cannot have is no fault of the object: it has no such property.
    if "Unsatisfiable" not in message and "#" not in json.dumps(schema):
        whole, place = within(schema)
        refused_by(whole, place + path[1:])


def test_what_can_be_held_beside_faults_is_held() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"oneOf": [{"const": "a"}, {"type": "string", "maxLength": 1}]},
            "tags": {"type": "array", "contains": {"const": "x"}, "items": {"enum": ["x", "y"]}},
            "size": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
            "code": {"type": "string", "pattern": "(?!x)", "maxLength": 2},
        },
        "required": ["kind", "tags", "size", "code"],
        "not": {"required": ["z"]},
    }
    loose = compiled(schema, "loose_json_schema")
    assert loose.ignored == (
        "$.not", "$.properties.code.pattern", "$.properties.kind.oneOf",
        "$.properties.size.maximum", "$.properties.tags.contains",
    )  # fmt: skip
    good = {"kind": "b", "tags": ["y"], "size": 2**70, "code": "ab", "z": 1}
    assert allows(loose, json.dumps(good))
    for wrong in ({"kind": "bc"}, {"tags": ["z"]}, {"size": -1}, {"code": "abc"}):
        assert not allows(loose, json.dumps(good | wrong)), wrong


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "strin"}, "$.type"),
        ({"properties": {"a": {"required": "b"}}}, "$.properties.a.required"),
        ({"properties": {"a": {"minLength": -1}}}, "$.properties.a.minLength"),
        ({"items": [{"maximum": "9"}]}, "$.items[0].maximum"),
    ],
)
def test_what_is_no_schema_is_refused_even_so(schema: Any, path: str) -> None:
    for kind in ("json_schema", "loose_json_schema"):
        with pytest.raises(GrammarError, match=re.escape(path)):
            compiled(schema, kind)


def test_a_search_that_takes_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that is too large as a whole, and none of its keywords at fault."""
    monkeypatch.setattr(grammar, "_SEARCH_S", 0.2)
    many = {f"property{i}": {"type": "string", "pattern": f"(?=a{i})"} for i in range(900)}
    started = time.process_time()
    loose = COMPILER.compile(Grammar("loose_json_schema", json.dumps({"properties": many}), ""))
    assert time.process_time() - started < 10
    assert loose.ignored == ("$",) or len(loose.ignored) > 100
    assert allows(loose, "{}")


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "no uri%", "type": "integer"},
        {"$id": "https://example.com/a", "$dynamicAnchor": "node", "type": "integer"},
        {"$schema": "https://example.com/mine", "$anchor": "a b", "type": "integer"},
        {"then": {"const": 1}, "minContains": 3, "type": "integer"},
        {"minimum": 2.0, "type": "integer", "discriminator": {}},
        {"$ref": "other", "$defs": {"a": {"$id": "other", "type": "integer"}}},
        {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"type": "integer"}}}},
    ],
)
def test_what_says_nothing_is_dropped(schema: Any) -> None:
    grammar = compiled(schema)
    assert allows(grammar, "7")
    assert not allows(grammar, '"a"')


def test_the_email_pattern_of_zod() -> None:
    pattern = (
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@"
        r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    )
    grammar = compiled({"type": "string", "format": "email", "pattern": pattern})
    assert allows(grammar, '"ann.lee@example.com"')
    for wrong in (".a@example.com", "a..b@example.com", "a!@example.com", "a@b"):
        assert not allows(grammar, json.dumps(wrong))
    with pytest.raises(GrammarError, match=r"\$\.pattern: .*look-ahead"):
        compiled({"type": "string", "pattern": pattern})
