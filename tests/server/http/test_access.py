"""Who may ask: keys, pages of other origins; and what a daemon with strict fields refuses."""

import httpx
import msgspec
import pytest

from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import api_keys, server_config

PAGE = "https://chat.example.org"


@pytest.fixture(scope="module")
def guarded(module_builder: DeploymentBuilder) -> Deployment:
    """Two keys, one origin, strict fields."""
    model = msgspec.structs.replace(
        module_builder.model("writer", "generate"), aliases=("gpt-4o", "chat")
    )
    config = msgspec.structs.replace(
        server_config(model),
        api_keys=api_keys("one", "two"),
        cors_origins=(PAGE,),
        strict_fields=True,
    )
    return module_builder.open(config)


def authorized(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers", [{}, authorized("wrong"), {"Authorization": "one"}, {"x-api-key": "wrong"}]
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/version", "/docs", "/openapi.json", "/nothing", "/health/"]
)
def test_without_a_key_nothing_is_answered(guarded: Deployment, path: str, headers) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        answer = guarded.http.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/json"
        if method != "HEAD":
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("headers", [authorized("one"), {"x-api-key": "two"}])
def test_a_key_may_come_in_either_header(guarded: Deployment, headers) -> None:
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


def test_who_speaks_as_anthropics_clients_is_refused_so(guarded: Deployment) -> None:
    for path, headers in (("/v1/messages", {}), ("/v1/models", {"anthropic-version": "a"})):
        answer = guarded.http.get(path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/ping", "/metrics"])
def test_health_and_metrics_need_none(guarded: Deployment, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


def test_metrics_behind_the_key(builder: DeploymentBuilder) -> None:
    config = server_config(builder.model("writer", "generate"))
    closed = builder.open(
        msgspec.structs.replace(config, api_keys=api_keys("one"), metrics_key=True)
    )
    assert closed.http.get("/metrics").status_code == 401
    answer = closed.http.get("/metrics", headers=authorized("one"))
    assert "penstock_http_requests_total" in answer.text
    assert closed.http.get("/health/live").status_code == 200


def test_a_preflight_needs_no_key(guarded: Deployment) -> None:
    asks = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
    }
    answer = guarded.http.options("/v1/completions", headers=asks)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type", "x-stainless-lang"} <= set(allowed.split(", "))
    stranger = guarded.http.options("/v1/completions", headers=asks | {"Origin": "https://x"})
    assert (stranger.status_code, stranger.text) == (400, "Disallowed CORS origin")
    assert stranger.headers["content-type"].startswith("text/plain")
    assert "access-control-allow-origin" not in stranger.headers


def test_answers_and_errors_can_be_read_by_the_page(guarded: Deployment) -> None:
    for headers, status in (({}, 401), (authorized("one"), 200)):
        answer = guarded.http.get("/v1/models", headers=headers | {"Origin": PAGE})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        shown = "x-request-id, retry-after, x-penstock-ignored"
        assert answer.headers["access-control-expose-headers"] == shown
        assert "access-control-allow-credentials" not in answer.headers
        answer = guarded.http.get("/v1/models", headers=headers | {"Origin": "https://x"})
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin", "no cache gives it to the page"


def test_without_an_origin_there_is_no_cors(deployment: Deployment) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = deployment.http.options("/v1/completions", headers=asks)
    assert answer.status_code == 405
    answer = deployment.http.get("/v1/models", headers={"Origin": PAGE})
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_strict_fields(guarded: Deployment, deployment: Deployment) -> None:
    body = {"prompt": "a", "temprature": 1}
    answer = guarded.http.post("/v1/completions", json=body, headers=authorized("one"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temprature"
    assert deployment.post("/v1/completions", body).status_code == 200


def test_a_model_answers_to_each_of_its_names(guarded: Deployment) -> None:
    def complete(**fields: str) -> httpx.Response:
        body = {"prompt": "a", **fields}
        return guarded.http.post("/v1/completions", json=body, headers=authorized("two"))

    models = guarded.http.get("/v1/models", headers=authorized("two")).json()["data"]
    listed = [model["id"] for model in models]
    assert listed == ["writer", "gpt-4o", "chat"]
    for fields in ({}, *({"model": name} for name in listed)):
        assert complete(**fields).json()["model"] == "writer"
    assert "(writer, gpt-4o, chat)" in complete(model="x").json()["error"]["message"]
