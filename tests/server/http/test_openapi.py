import re
from typing import Any

import pytest


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
    assert deployment.http.get("/redoc").status_code == 404


def references(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    if isinstance(node, list):
        return set().union(*map(references, node))
    return set()


@pytest.fixture
def description(deployment) -> dict:
    return deployment.http.get("/openapi.json").json()


def test_every_reference_leads_somewhere(description):
    names = {
        reference.removeprefix("#/components/schemas/") for reference in references(description)
    }
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
