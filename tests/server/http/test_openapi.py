"""/openapi.json says what every field means, shows examples, and lists what is not served."""

import json
import re
from typing import Any

import msgspec
import pytest

from server.daemon.application import all_endpoints
from server.http.openapi import components, examples_of, field_texts, structs_of
from server.schemas.known_options import known_options

STRUCTS = structs_of(all_endpoints())


class _Base(msgspec.Struct, kw_only=True):
    """A base."""

    kept: int
    """Of the base."""
    replaced: int
    """Of the base, too."""


class _Request(_Base, kw_only=True, tag="request"):
    """A request. Not an example."""

    """Example: {"kept": 1, "named in JSON": "a long
    text"}"""

    replaced: int
    """A text
    of two lines, see [there](#there)."""
    first: int
    second: int = msgspec.field(name="named in JSON")
    """A text for both."""


def test_a_string_describes_the_fields_above_it() -> None:
    assert field_texts(_Request) == {
        "type": "Which of the forms this is.",
        "kept": "Of the base.",
        "replaced": "A text of two lines, see [there](#there).",
        "first": "A text for both.",
        "named in JSON": "A text for both.",
    }
    assert examples_of(_Request) == [{"kept": 1, "named in JSON": "a long text"}]
    described = components({"_Request": _Request})["_Request"]
    assert described["description"] == "A request. Not an example."
    assert described["properties"]["replaced"]["description"] == "A text of two lines, see there."


def test_the_page_needs_nothing_from_elsewhere(deployment):
    page = deployment.http.get("/docs")
    assert page.status_code == 200
    assets = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(assets) >= 3
    assert "://" not in page.text.replace("window.location", "")
    for asset in assets:
        response = deployment.http.get(asset)
        assert response.status_code == 200
        assert response.content
    assert '"validatorUrl": null' in page.text
    assert '"defaultModelsExpandDepth": 0' in page.text, "schemas are folded"
    assert deployment.http.get("/redoc").status_code == 404


@pytest.fixture
def description(deployment) -> dict:
    return deployment.http.get("/openapi.json").json()


def test_every_reference_leads_somewhere(description):
    references = re.findall(r'"\$ref": "(.*?)"', json.dumps(description))
    names = {reference.removeprefix("#/components/schemas/") for reference in references}
    assert names <= set(description["components"]["schemas"])
    assert {"CompletionRequest", "Completion", "ErrorBody", "EmbeddingList"} <= names


def named(schema: dict[str, Any]) -> list[str]:
    """The type that a schema refers to, or those of each dialect at a path."""
    dialects = schema.get("anyOf", [schema])
    return [each.get("$ref", "").rpartition("/")[2] for each in dialects]


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/completions", "CompletionRequest", "Completion"),
        ("/v1/embeddings", "EmbeddingRequest", "EmbeddingList"),
        ("/v1/rerank", "RerankRequest", "Reranking"),
        ("/tokenize", "TokenizeRequest", "Tokens"),
        ("/detokenize", "DetokenizeRequest", "DetokenizedText"),
    ],
)
def test_bodies_and_answers_are_described(description, path, body, answer):
    operation = description["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert named(schema)[0] == body, "our own form is the first"
    content = operation["responses"]["200"]["content"]
    assert named(content["application/json"]["schema"])[0] == answer
    assert ("text/event-stream" in content) == (path == "/v1/completions")
    error = operation["responses"]["400"]["content"]["application/json"]["schema"]
    assert named(error)[0] == "ErrorBody"
    fields = description["components"]["schemas"][body]["properties"]
    assert "model" in fields


def test_every_field_is_described(description):
    properties = {
        f"{name}.{field}": schema
        for name, component in description["components"]["schemas"].items()
        for field, schema in component.get("properties", {}).items()
    }
    assert len(properties) > 500
    assert [name for name, schema in properties.items() if not schema.get("description")] == []


def test_every_operation_is_in_a_group_of_the_page(description):
    groups = {tag["name"] for tag in description["tags"]}
    tags = [each["tags"] for item in description["paths"].values() for each in item.values()]
    assert {tag for each in tags for tag in each} == groups
    assert all(tags)


@pytest.mark.parametrize(
    ("method", "path", "tags"),
    [
        ("post", "/v1/chat/completions", ["OpenAI"]),
        ("post", "/v2/chat", ["Cohere"]),
        ("post", "/v2/embed", ["Cohere"]),
        ("post", "/v1/rerank", ["Jina, vLLM", "Cohere"]),
        ("post", "/classify", ["Jina, vLLM"]),
        ("post", "/rerank", ["TEI", "Jina, vLLM"]),
        ("post", "/", ["TEI"]),
        ("get", "/", ["Operations"]),
    ],
)
def test_groups_are_those_whose_clients_ask_so(description, method, path, tags):
    assert description["paths"][path][method]["tags"] == tags


def test_every_operation_is_described_and_has_its_examples(description):
    for path, item in description["paths"].items():
        for name, operation in item.items():
            assert operation.get("summary"), (path, name)
            assert operation.get("description"), (path, name)
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                assert content["application/json"]["examples"], path
            found = operation.get("parameters", [])
            in_path = {each["name"] for each in found if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert all(each["description"] for each in found), path


@pytest.mark.parametrize("request_type", known_options().endpoints)
def test_examples_are_requests(request_type):
    struct = STRUCTS[request_type]
    examples = examples_of(struct)
    assert examples
    for example in examples:
        msgspec.json.decode(json.dumps(example), type=struct)
        assert example.keys() <= set(struct.__struct_fields__)


def test_what_is_not_served_is_in_a_list_of_its_own(description):
    table = known_options()
    chat = description["paths"]["/v1/chat/completions"]["post"]["description"]
    assert "Known, not served" in chat
    for name in table.of("ChatRequest", "refused"):
        assert f"`{name}`" in chat
    for request in table.endpoints:
        fields = description["components"]["schemas"][request]["properties"].keys()
        assert not fields & table.of(request, "refused").keys(), request
