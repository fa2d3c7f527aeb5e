"""Every documented operation goes through the gate."""

import re
from collections import Counter

import pytest

from tests.patience import wait_until
from tests.server.conftest import Deployment


def operations(deployment: Deployment, method: str) -> list[str]:
    paths = deployment.http.get("/openapi.json").json()["paths"]
    return [path for path, item in paths.items() if method in item]


def counts(deployment: Deployment) -> Counter[tuple[str, int]]:
    """How many requests were answered, by endpoint and status."""
    page = deployment.http.get("/metrics").text
    found = re.findall(
        r'(?m)^penstock_http_requests_total\{endpoint="(.*)",status="(.*)"\} (.*)$', page
    )
    return Counter({(path, int(status)): int(float(count)) for path, status, count in found})


def test_every_documented_path_is_counted_by_its_name(deployment: Deployment) -> None:
    posts = operations(deployment, "post")
    assert {"/v1/completions", "/embed", "/"} <= set(posts)
    before = counts(deployment)
    answered = [(path, deployment.http.post(path, content=b"{").status_code) for path in posts]
    assert {status for _, status in answered} <= {400, 422, 501}
    wait_until(lambda: all(counts(deployment)[each] == before[each] + 1 for each in answered))


def test_the_status_page_is_counted_apart_from_the_path_of_tei(deployment: Deployment) -> None:
    before = counts(deployment)
    for accept in ("text/html", "application/json"):
        assert deployment.http.get("/", headers={"accept": accept}).status_code == 200
    assert deployment.post("/", {"inputs": "a"}).status_code == 200
    expected = {("/status-page/{file}", 200): 2, ("/", 200): 1}

    def counted() -> dict[tuple[str, int], int]:
        after = counts(deployment)
        return {each: after[each] - before[each] for each in expected}

    wait_until(lambda: counted() == expected)


def test_head_is_get_without_its_body(deployment: Deployment) -> None:
    gets = [path for path in operations(deployment, "get") if path != "/"]
    assert {"/info", "/v1/models/{model}"} <= set(gets)
    answered: set[tuple[str, int]] = set()
    for pattern in gets:
        path = pattern.replace("{model}", "writer")
        got, head = deployment.http.get(path), deployment.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert "content-length" in head.headers
        answered.add((pattern, got.status_code))
    assert answered <= counts(deployment).keys()


@pytest.mark.parametrize(
    ("path", "body"), [("/embed", b'{"inputs": "a"}'), ("/v1/embeddings", b'{"input": "a"}')]
)
@pytest.mark.parametrize("unsent", [0, 10])
def test_a_client_that_leaves_is_no_failure(deployment: Deployment, path, body, unsent) -> None:
    """It has sent its request, or all but some bytes of it."""
    engine = deployment.engines["embedder"]
    engine.script.held = True
    before = counts(deployment)
    with deployment.begin(path, body, unsent=unsent):
        if not unsent:
            wait_until(lambda: len(engine.received) == 1)
    wait_until(lambda: counts(deployment)[path, 499] == before[path, 499] + 1)
    after = counts(deployment)
    assert all(after[path, status] == before[path, status] for status in (400, 500))
