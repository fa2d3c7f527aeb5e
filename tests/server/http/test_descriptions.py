"""/openapi.json says what every field means, shows examples, and lists what is not served."""

import json
from typing import Any

import msgspec
import pytest

from server.daemon.application import all_endpoints
from server.http.openapi import descriptions
from server.schemas.known_options import known_options

BODIES = {kind.__name__: kind for each in all_endpoints() for kind in each.operation.types}


@pytest.fixture
def document(deployment) -> dict[str, Any]:
    return deployment.http.get("/openapi.json").json()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    paths = document["paths"].items()
    return [(f"{method} {path}", each) for path, item in paths for method, each in item.items()]


def test_every_field_is_described(document) -> None:
    components = document["components"]["schemas"]
    properties = {
        f"{name}.{field}": schema
        for name, component in components.items()
        for field, schema in component.get("properties", {}).items()
    }
    assert len(properties) > 500
    assert [name for name, schema in properties.items() if not schema.get("description")] == []


def test_what_is_described_is_there(document) -> None:
    components = document["components"]["schemas"]
    told = descriptions().fields
    assert told.keys() <= components.keys()
    for name, fields in told.items():
        assert fields.keys() <= components[name]["properties"].keys(), name


def test_every_operation_is_described_and_has_its_examples(document) -> None:
    for name, operation in operations(document):
        assert operation.get("summary"), name
        assert operation.get("description"), name
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            assert content["application/json"]["examples"], name


@pytest.mark.parametrize("request_type", known_options().endpoints)
def test_examples_are_requests(request_type: str) -> None:
    examples = descriptions().examples[request_type]
    assert examples
    for example in examples:
        msgspec.json.decode(json.dumps(example), type=BODIES[request_type])
        assert example.keys() <= set(BODIES[request_type].__struct_fields__)


def test_what_is_not_served_is_in_a_list_of_its_own(document) -> None:
    table = known_options()
    chat = document["paths"]["/v1/chat/completions"]["post"]["description"]
    assert "Known, not served" in chat
    for name in table.of("ChatRequest", "refused"):
        assert f"`{name}`" in chat
    for request in table.endpoints:
        fields = document["components"]["schemas"][request]["properties"].keys()
        assert not fields & table.of(request, "refused").keys(), request
