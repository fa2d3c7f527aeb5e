"""`response_format`, `regex`, `choice` and their other names, on their way to the engine, which is
itself fake."""

import json

import pytest

from engine_core.messages import Failed, Grammar
from tests.server.conftest import Deployment

VALUE = "response_format.value"
SCHEMA_FIELD = "response_format.json_schema.schema"


def wrapped(schema: object, strict: bool | None = True) -> dict:
    named = {"name": "thing", "strict": strict, "schema": schema}
    return form("json_schema", json_schema=named)


def form(kind: str, **fields: object) -> dict:
    return {"response_format": {"type": kind, **fields}}


def schema(text: str, field: str) -> Grammar:
    return Grammar("json_schema", text, field)


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "regex": None, "choice": None}, None),
        (form("text"), None),
        (form("json_object"), schema('{"type": "object"}', "response_format")),
        (wrapped({"b": {}, "a": [1]}), schema('{"b": {}, "a": [1]}', SCHEMA_FIELD)),
        ({"regex": "a+", "response_format": {"type": "text"}}, Grammar("regex", "a+", "regex")),
        ({"choice": ["a", 'b"', "é"]}, Grammar("choice", '["a","b\\"","é"]', "choice")),
        (form("json_object", schema={"a": 1}), schema('{"a": 1}', "response_format.schema")),
        (form("json_object", schema=None), schema('{"type": "object"}', "response_format")),
        (wrapped({}, strict=False), Grammar("loose_json_schema", "{}", SCHEMA_FIELD)),
        (wrapped({}, strict=None), schema("{}", SCHEMA_FIELD)),
        (form("json_object", value={"a": 1}), schema('{"a": 1}', VALUE)),
        (form("json_object", value=None), schema('{"type": "object"}', "response_format")),
        (form("json", value='{"a": 1}'), schema('{"a": 1}', VALUE)),
        (form("regex", value="a+"), Grammar("regex", "a+", VALUE)),
        (form("json_schema", value={"name": "n", "schema": {"a": 1}}),
         schema('{"a": 1}', f"{VALUE}.schema")),
        ({"json_schema": {"b": {}}}, schema('{"b": {}}', "json_schema")),
        ({"guided_json": ' {"b": "é"} '}, schema('{"b": "é"}', "guided_json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
        ({"guided_choice": ["a"]}, Grammar("choice", '["a"]', "guided_choice")),
        ({"structured_outputs": {"json": {"a": 1}, "regex": None, "json_object": False}},
         schema('{"a": 1}', "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a"}}, Grammar("regex", "a", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}},
         Grammar("choice", '["a"]', "structured_outputs.choice")),
        ({"structured_outputs": {"json_object": True}},
         schema('{"type": "object"}', "structured_outputs.json_object")),
        ({"structured_outputs": {}, "guided_json": None, "json_schema": None}, None),
        ({"regex": "a", "guided_regex": "a", "structured_outputs": {"regex": "a"}},
         Grammar("regex", "a", "regex")),
    ],
)  # fmt: skip
def test_the_engine_is_told_what_the_text_must_match(
    deployment: Deployment, fields, grammar
) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 2} | fields, ensure_ascii=False)
    response = deployment.http.post("/v1/completions", content=body.encode())
    assert response.status_code == 200, response.text
    assert deployment.job("writer").params.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        (form("xml"), "response_format.type"),
        (form("json_schema"), "response_format.json_schema"),
        (form("json_schema", json_schema={}), SCHEMA_FIELD),
        (form("json"), VALUE),
        (form("json", value=None), VALUE),
        (form("json_object", value=[]), VALUE),
        (form("json_object", value={}, schema={"a": 1}), VALUE),
        (form("regex", value=""), VALUE),
        (wrapped(None), SCHEMA_FIELD),
        (wrapped([]), SCHEMA_FIELD),
        (wrapped('{"type": "object"}'), SCHEMA_FIELD),
        (wrapped({"enum": ["x" * 70_000]}), SCHEMA_FIELD),
        ({"regex": ""}, "regex"),
        ({"regex": 3}, "regex"),
        ({"regex": "x" * 70_000}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "a"}, "choice"),
        ({"choice": ["a", ""]}, "choice[1]"),
        ({"choice": ["x" * 40_000, "y" * 40_000]}, "choice"),
        ({"choice": ["a"], "regex": "a"}, "choice"),
        ({"choice": ["a"], "response_format": {"type": "json_object"}}, "choice"),
        ({"regex": "a", **wrapped({})}, "regex"),
        ({"regex": "a", "guided_regex": "b"}, "guided_regex"),
        ({"guided_json": {"a": 1}, "json_schema": {"a": 2}}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": True}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json"),
        ({"json_schema": []}, "json_schema"),
        (form("json_object", schema=[]), "response_format.schema"),
    ],
)
def test_a_grammar_that_cannot_be_names_its_field(
    deployment: Deployment, fields: dict, param: str
) -> None:
    error = deployment.refusal("/v1/completions", prompt="a", **fields)
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert deployment.engines["writer"].received == []


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_engine_finds_in_a_grammar_comes_before_the_status(
    deployment: Deployment, streamed: bool
) -> None:
    refusal = Failed(0, "invalid_request", "regex: unclosed group", "regex")
    deployment.engines["writer"].script.refusal = refusal
    error = deployment.refusal("/v1/completions", prompt="a", regex="a(", stream=streamed)
    assert error["param"] == "regex"


@pytest.mark.parametrize("streamed", [False, True])
def test_the_header_has_the_paths_that_are_left_out(deployment: Deployment, streamed: bool) -> None:
    body = {"prompt": "a", "stream": streamed, "max_tokens": 2}
    assert "x-penstock-ignored" not in deployment.post("/v1/completions", body).headers
    deployment.engines["writer"].script.ignored = ("$.a.pattern", '$["\\u00e9"].not')
    response = deployment.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    assert response.headers["x-penstock-ignored"] == '$.a.pattern,$["\\u00e9"].not'
