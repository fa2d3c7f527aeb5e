"""Structured output of the demo model: its text has the form asked for, whatever it would say."""

import concurrent.futures
import json
import re
from typing import Any

import httpx
import openai
import pytest

from server.demo import GENERATOR_NAME
from tests.e2e.daemon import Daemon, metric
from tests.patience import wait_until

PROMPT = "The configuration of the server as JSON:\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "mode": {"enum": ["fast", "safe", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
    },
    "required": ["name", "port", "mode", "tags"],
    "additionalProperties": False,
}
SILENT = {keyword: SCHEMA[keyword] for keyword in ("type", "properties", "required")}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "server", "schema": SCHEMA}}
VERSION = r"v[0-9]{1,3}\.[0-9]{1,3}(-(alpha|beta))?"
COLOURS = ["red", "dark green", "blue"]


def complete(daemon: Daemon, **fields: Any) -> dict[str, Any]:
    body = {"model": GENERATOR_NAME, "prompt": PROMPT, "max_tokens": 200} | fields
    return daemon.ask("/v1/completions", **body)


def assert_valid(text: str) -> None:
    """By hand, so that nothing that compiled the schema judges it."""
    value = json.loads(text)
    assert list(value) == ["name", "port", "mode", "tags"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert isinstance(value["port"], int)
    assert 1 <= value["port"] <= 65535
    assert value["mode"] in ("fast", "safe", None)
    assert len(value["tags"]) <= 3
    assert all(isinstance(tag, str) and len(tag) <= 5 for tag in value["tags"])


@pytest.mark.parametrize(
    ("form", "sampling"),
    [
        (JSON_SCHEMA, {"temperature": 0}),
        (JSON_SCHEMA, {"temperature": 1.5, "seed": 5}),
        # TGI's. A schema that says nothing of other properties ends like one that forbids them.
        ({"type": "json", "value": SCHEMA}, {"temperature": 0}),
        ({"type": "json_object", "value": SILENT}, {"temperature": 0}),
        ({"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}}, {"temperature": 0}),
    ],
)
def test_a_schema_is_followed(demo: Daemon, form: Any, sampling: dict[str, Any]) -> None:
    (choice,) = complete(demo, response_format=form, **sampling)["choices"]
    assert choice["finish_reason"] == "stop"
    assert_valid(choice["text"])


def test_a_schema_is_followed_in_a_stream(demo: Daemon) -> None:
    client = openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none")
    stream = client.completions.create(
        model=GENERATOR_NAME,
        prompt=PROMPT,
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"response_format": JSON_SCHEMA},
    )
    *chunks, last = list(stream)
    assert len(chunks) > 5
    assert_valid("".join(chunk.choices[0].text for chunk in chunks))
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens >= len(chunks) - 1


def test_every_choice_has_a_text_of_its_own(demo: Daemon) -> None:
    answer = complete(demo, prompt=["A", PROMPT], n=2, response_format=JSON_SCHEMA, seed=3)
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 4
    assert len(set(texts)) > 1
    for text in texts:
        assert_valid(text)


def test_log_probabilities_are_those_of_the_model(demo: Daemon) -> None:
    """The mask decides what is sampled, not what the model thinks of it."""
    (choice,) = complete(demo, choice=["zebra", "quagga"], logprobs=3, temperature=0)["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert max(logprobs["token_logprobs"]) < 0
    assert any(
        token not in top or len(top) > 3
        for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    )


def test_a_mixed_crowd_gets_its_own_forms(demo: Daemon) -> None:
    free = complete(demo, temperature=0, max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    forms: list[dict[str, Any]] = [
        {"response_format": JSON_SCHEMA},
        {"response_format": {"type": "regex", "value": VERSION}},
        {"choice": COLOURS},
        {"temperature": 0, "max_tokens": 40, "ignore_eos": True},
    ] * 4
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda form: complete(demo, **form), forms))
    texts = [answer["choices"][0]["text"] for answer in answers]
    for text in texts[0::4]:
        assert_valid(text)
    assert all(re.fullmatch(VERSION, text) for text in texts[1::4])
    assert set(texts[2::4]) <= set(COLOURS)
    assert set(texts[3::4]) == {free}
    wait_until(lambda: metric(demo.url, "penstock_engine_running_rows") == 0)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"regex": "a("}, "regex", "unclosed group"),
        ({"json_schema": {"const": -(2**63)}}, "json_schema", "$.const: "),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
         "response_format.json_schema.schema", "strin"),
        ({"guided_json": '{"type": "object"'}, "guided_json", "cannot be read"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_a_bad_grammar_is_named_before_the_status(
    demo: Daemon, fields: dict[str, Any], param: str, says: str, streamed: bool
) -> None:
    body = {"model": GENERATOR_NAME, "prompt": PROMPT, "stream": streamed} | fields
    answer = httpx.post(f"{demo.url}/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("path", "streamed"),
    [
        ("completions", False),
        ("chat/completions", True),
        pytest.param("completions", True, marks=pytest.mark.long),
        pytest.param("chat/completions", False, marks=pytest.mark.long),
    ],
)
def test_what_a_loose_schema_cannot_hold_is_told(demo: Daemon, path: str, streamed: bool) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "name": {
        "type": "string", "maxLength": 12, "pattern": "(?!x)", "not": {"const": "a"}}}}  # fmt: skip
    named = {"name": "server", "schema": schema, "strict": False}
    body: dict[str, Any] = {"model": GENERATOR_NAME, "max_tokens": 200, "stream": streamed}
    body |= {"response_format": {"type": "json_schema", "json_schema": named}}
    body |= {"prompt": PROMPT} if path == "completions" else {
        "messages": [{"role": "user", "content": PROMPT}]}  # fmt: skip
    answer = httpx.post(f"{demo.url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    paths = answer.headers["x-penstock-ignored"].split(",")
    assert paths == ["$.properties.name.not", "$.properties.name.pattern"]
    if not streamed:
        (choice,) = answer.json()["choices"]
        assert_valid(choice["text"] if path == "completions" else choice["message"]["content"])
    named["strict"] = True
    refused = httpx.post(f"{demo.url}/v1/{path}", json=body)
    assert refused.status_code == 400
    assert "$.properties.name." in refused.json()["error"]["message"]
