"""Endpoints are found where they are declared; which models are said to serve them."""

from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from server.daemon.application import all_endpoints
from server.service.endpoint import Endpoint, Operation
from tests.server.support import served_model
from workers.contract.config import Task

ENDPOINTS = all_endpoints()


def test_every_declared_endpoint_has_a_handler_and_a_path_of_its_own() -> None:
    paths = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
    assert {("POST", "/v1/completions"), ("GET", "/metrics"), ("POST", "/embed")} <= set(paths)
    assert len(set(paths)) == len(paths)
    assert all(callable(endpoint.handler) for endpoint in ENDPOINTS)


@pytest.mark.parametrize(
    ("task", "labels", "paths"),
    [
        (
            "generate",
            1,
            [
                "/v1/completions",
                "/v1/chat/completions",
                "/v1/responses",
                "/v1/decisions",
                "/v1/systemone",
            ],
        ),
        ("embed", 1, ["/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling"]),
        ("embed_sparse", 1, ["/embed_sparse"]),
        ("classify", 1, ["/v1/rerank", "/v1/score", "/v1/classify", "/pooling"]),
        ("classify", 2, ["/v1/classify", "/pooling"]),
    ],
)
def test_what_a_model_is_said_to_serve(task: Task, labels: int, paths: list[str]) -> None:
    names = tuple(map(str, range(labels)))
    execution = served_model("m", task, Path(), "ipc://m", vocab_size=9, labels=names).execution
    served = [
        each.path for each in ENDPOINTS if each.variant_of is None and each.is_served_by(execution)
    ]
    assert served == [*paths, "/tokenize", "/detokenize"]


def test_a_variant_is_served_by_the_same_models() -> None:
    original = Endpoint("POST", "/a", tasks=("classify",), relevance=True)
    variant = Endpoint("POST", "/b", variant_of=original)
    assert (variant.tasks, variant.relevance) == (("classify",), True)
    handler = variant.handler = AsyncMock()
    variant.operation = Operation()
    other = variant.at("/c", order=7)
    assert (other.path, other.variant_of, other.order) == ("/c", original, 7)
    assert (other.tasks, other.handler) == (("classify",), handler)
