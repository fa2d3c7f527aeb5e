"""Every documented operation goes through the gate."""

import re
import socket

import pytest

from tests.patience import wait_until
from tests.server.conftest import Deployment


def operations(deployment: Deployment, method: str) -> list[str]:
    paths = deployment.http.get("/openapi.json").json()["paths"]
    return [path for path, item in paths.items() if method in item]


def counted(deployment: Deployment, endpoint: str, status: int) -> float:
    labels = f'endpoint="{endpoint}",status="{status}"'
    sample = re.escape(f"penstock_http_requests_total{{{labels}}} ") + r"(\S+)"
    found = re.search(sample, deployment.http.get("/metrics").text)
    return float(found[1]) if found else 0.0


def begin(deployment: Deployment, path: str, body: bytes, *, promised: int) -> socket.socket:
    """Send the head of a request of `promised` bytes, and `body`."""
    client = socket.create_connection(("127.0.0.1", deployment.api.port))
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {promised}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_every_documented_path_is_counted_by_its_name(deployment: Deployment) -> None:
    posts = operations(deployment, "post")
    assert {"/v1/completions", "/embed", "/"} <= set(posts)
    for path in posts:
        assert_counted(deployment, path, content=b"{")


def assert_counted(deployment: Deployment, path: str, content: bytes) -> None:
    before = {status: counted(deployment, path, status) for status in (400, 422, 501)}
    status = deployment.http.post(path, content=content).status_code
    wait_until(lambda: counted(deployment, path, status) == before[status] + 1)


def test_head_is_get_without_its_body(deployment: Deployment) -> None:
    gets = operations(deployment, "get")
    assert {"/info", "/v1/models/{model}"} <= set(gets)
    for pattern in gets:
        path = pattern.replace("{model}", "writer")
        got, head = deployment.http.get(path), deployment.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert counted(deployment, pattern, got.status_code) > 0, path


@pytest.mark.parametrize(
    ("path", "body"), [("/embed", b'{"inputs": "a"}'), ("/v1/embeddings", b'{"input": "a"}')]
)
@pytest.mark.parametrize("unsent", [0, 10])
def test_a_client_that_leaves_is_no_failure(
    deployment: Deployment, path: str, body: bytes, unsent: int
) -> None:
    """It has sent its request, or all but some bytes of it."""
    engine = deployment.engines["embedder"]
    engine.script.held = True
    before = {status: counted(deployment, path, status) for status in (400, 499, 500)}
    with begin(deployment, path, body, promised=len(body) + unsent):
        if not unsent:
            wait_until(lambda: len(engine.received) == 1)
    wait_until(lambda: counted(deployment, path, 499) == before[499] + 1)
    assert [counted(deployment, path, status) for status in (400, 500)] == [
        before[400],
        before[500],
    ]
