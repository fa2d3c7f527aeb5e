"""Who may ask: keys, pages of other origins; and what a daemon with strict fields refuses."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from tests.patience import PATIENCE
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import api_keys, server_config, write_tokenizer

PAGE = "https://chat.example.org"


@pytest.fixture(scope="module")
def guarded(tokenizer: Tokenizer) -> Iterator[Deployment]:
    """Two keys, one origin, strict fields."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        write_tokenizer(Path(name))
        builder = DeploymentBuilder(Path(name), tokenizer)
        model = msgspec.structs.replace(
            builder.model("writer", "generate"), aliases=("gpt-4o", "chat")
        )
        config = msgspec.structs.replace(
            server_config(model),
            api_keys=api_keys("one", "two"),
            cors_origins=(PAGE,),
            strict_fields=True,
        )
        yield builder.open(config)
        builder.close()


@pytest.mark.parametrize("key", ["one", "two"])
def test_any_key_opens(guarded: Deployment, key: str) -> None:
    answer = guarded.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"Authorization": f"Bearer {key}"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/docs", "/openapi.json", "/nothing", "/health/"])
def test_without_a_key_nothing_is_answered(guarded: Deployment, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        answer = guarded.http.request(method, path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/json"
        if method != "HEAD":
            assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/metrics"])
def test_health_and_metrics_need_none(guarded: Deployment, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


def test_metrics_behind_the_key(builder: DeploymentBuilder) -> None:
    config = server_config(builder.model("writer", "generate"))
    closed = builder.open(
        msgspec.structs.replace(config, api_keys=api_keys("one"), metrics_key=True)
    )
    assert closed.http.get("/metrics").status_code == 401
    answer = closed.http.get("/metrics", headers={"Authorization": "Bearer one"})
    assert "penstock_http_requests_total" in answer.text
    assert closed.http.get("/health/live").status_code == 200


def cors_headers(answer: httpx.Response) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control")]


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
    assert not cors_headers(stranger)


def test_answers_and_errors_can_be_read_by_the_page(guarded: Deployment) -> None:
    for headers, status in (({}, 401), ({"Authorization": "Bearer one"}, 200)):
        answer = guarded.http.get("/v1/models", headers=headers | {"Origin": PAGE})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        shown = "x-request-id, retry-after, x-penstock-ignored"
        assert answer.headers["access-control-expose-headers"] == shown
        assert "access-control-allow-credentials" not in answer.headers
        answer = guarded.http.get("/v1/models", headers=headers | {"Origin": "https://x"})
        assert answer.status_code == status
        assert not cors_headers(answer)
        assert answer.headers["vary"] == "Origin", "no cache gives it to the page"


def test_without_an_origin_there_is_no_cors(deployment: Deployment) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = deployment.http.options("/v1/completions", headers=asks)
    assert answer.status_code == 405
    answer = deployment.http.get("/v1/models", headers={"Origin": PAGE})
    assert not cors_headers(answer)


def test_strict_fields(guarded: Deployment, deployment: Deployment) -> None:
    body = {"prompt": "a", "temprature": 1}
    answer = guarded.http.post(
        "/v1/completions", json=body, headers={"Authorization": "Bearer one"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temprature"
    assert deployment.post("/v1/completions", body).status_code == 200


def test_a_model_answers_to_each_of_its_names(guarded: Deployment) -> None:
    guarded_http = httpx.Client(
        base_url=guarded.api.url, headers={"Authorization": "Bearer two"}, timeout=PATIENCE
    )
    with guarded_http as http:
        listed = [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert listed == ["writer", "gpt-4o", "chat"]
        for name in listed:
            answer = http.post("/v1/completions", json={"prompt": "a", "model": name})
            assert (answer.status_code, answer.json()["model"]) == (200, "writer")
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        unknown = http.post("/v1/completions", json={"prompt": "a", "model": "x"})
        assert "(writer, gpt-4o, chat)" in unknown.json()["error"]["message"]
