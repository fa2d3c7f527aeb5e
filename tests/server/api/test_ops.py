import re
from urllib.parse import urljoin

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server import __version__
from server.daemon.application import all_endpoints
from server.service.service import Registry, Service
from tests.patience import wait_until
from tests.server.support import server_config


def metric(deployment, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(deployment.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0


def test_models_in_the_order_of_the_configuration(deployment):
    body = deployment.http.get("/v1/models").json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["writer", "embedder", "ranker"]
    assert {card["object"] for card in body["data"]} == {"model"}
    assert {card["max_model_len"] for card in body["data"]} == {2048}
    assert [card["root"] for card in body["data"]] == ["writer", "embedder", "ranker"]
    assert {card["parent"] for card in body["data"]} == {None}


def test_a_model_that_is_served_as_text_alone(encoders):
    cards = encoders.http.get("/v1/models").json()["data"]
    assert {card["id"]: card["text_only"] for card in cards if "text_only" in card} == {
        "seeing": True
    }


@pytest.mark.parametrize("name", ["org/deep/model", "org%2Fdeep%2Fmodel", "org%2fdeep/model"])
def test_one_model_by_its_id(chats, name):
    listed = chats.http.get("/v1/models").json()["data"]
    card = chats.http.get(f"/v1/models/{name}").json()
    assert [card] == [each for each in listed if each["id"] == "org/deep/model"]


@pytest.mark.parametrize("name", ["nobody", "%00", "%FF", "{model:path}", "org", "a" * 9000])
def test_models_that_are_not_here(chats, name):
    response = chats.http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("/v1/models/", "/v1/models"),
        ("/v1/models//", "/v1/models"),
        ("/v1/models/writer/", "/v1/models/writer"),
        ("/v1/models/org%2Fdeep%2fmodel/", "/v1/models/org%2Fdeep%2fmodel"),
        ("/v1/models/org/deep/model%2F", "/v1/models/org/deep/model"),
        ("/version/", "/version"),
        ("/v1/completions///", "/v1/completions"),
        ("/docs/", "/docs"),
    ],
)
@pytest.mark.parametrize("query", ["", "?a=b%20c"])
def test_an_extra_slash_leads_to_the_path_without_it_wherever_a_proxy_serves_it(
    chats, path, bare, query
):
    response = chats.http.get(f"{path}{query}", headers={"host": "inner.example:8000"})
    assert response.status_code == 307
    location = response.headers["location"]
    proxy = "https://api.example" if path.endswith("//") else "https://api.example/prefix"
    assert urljoin(f"{proxy}{path}{query}", location) == f"{proxy}{bare}{query}"
    assert response.headers["x-request-id"]
    assert not response.content


def test_no_answer_names_the_scheme_the_host_or_the_port(deployment):
    routes = list(deployment.http.get("/openapi.json").json()["paths"])
    paths = [*routes, "/docs", "/openapi.json", "/v1/models/", "/nothing", "/status-page/page.html"]
    # Numbers of metrics and times may have the digits of a port, but not behind a host.
    named = re.compile(rf"inner\.example|[\w\]]:(8123|{deployment.http.base_url.port})\b")
    for path in paths:
        for method in ("GET", "POST"):
            answer = deployment.http.request(method, path, headers={"host": "inner.example:8123"})
            found = named.search(f"{answer.headers} {answer.text}")
            assert found is None, (method, path, found)


def test_health_and_version(deployment):
    probes = ("/health", "/health/live", "/health/ready", "/ping")
    told = {path: {"status": "ok"} for path in probes}
    for path, said in {**told, "/version": {"version": __version__}}.items():
        response = deployment.http.get(path)
        assert (response.status_code, response.json()) == (200, said)


def test_metrics_count_what_was_asked_and_said(deployment, say):
    ids = say("The quick brown fox")
    endpoint = {"endpoint": "/v1/completions", "status": "200"}
    names = {
        "penstock_http_requests_total": endpoint,
        "penstock_http_request_seconds_count": {"endpoint": "/v1/completions"},
        "penstock_time_to_first_token_seconds_count": {"model": "writer"},
        "penstock_generated_tokens_total": {"model": "writer"},
        "penstock_prompt_tokens_total": {"model": "writer"},
    }
    before = [metric(deployment, name, **labels) for name, labels in names.items()]
    deployment.post("/v1/completions", {"prompt": "Hello"})

    def counted() -> list[float]:
        after = [metric(deployment, name, **labels) for name, labels in names.items()]
        return [b - a for a, b in zip(before, after, strict=True)]

    # An answer is counted once it is sent, which its reader may be ahead of.
    wait_until(lambda: counted() == [1, 1, 1, len(ids) + 1, 5])
    assert metric(deployment, "penstock_in_flight", what="requests") == 0
    assert metric(deployment, "penstock_in_flight", what="tokens") == 0
    assert metric(deployment, "penstock_engine_up", model="ranker") == 1
    assert metric(deployment, "penstock_engine_kv_blocks", model="writer") == 16


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        *[("GET", path, 404, "not_found") for path in ("/v2/everything", "/nothing/", "/v1/")],
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/writer", 405, "method_not_allowed"),
        ("GET", "/v1/responses/compact", 405, "method_not_allowed"),  # no response has this id
        ("OPTIONS", "/", 405, "method_not_allowed"),
    ],
)
def test_wrong_routes_in_the_error_shape(deployment, method, path, status, code):
    response = deployment.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    allowed = "POST" if path.endswith(("completions", "compact")) else "GET, HEAD"
    allowed += ", POST" if path == "/" else ""
    assert response.headers.get("allow") == (allowed if status == 405 else None)


def test_the_request_id_comes_back_cleaned(deployment):
    def echoed(value: str | None) -> str:
        headers = {} if value is None else {"X-Request-Id": value}
        return deployment.http.get("/version", headers=headers).headers["x-request-id"]

    assert echoed("abc-123_4:5/6") == "abc-123_4:5/6"
    assert echoed("a b<script>;\t{c}") == "abscriptc"
    assert echoed("x" * 500) == "x" * 128
    fresh = [echoed(None), echoed(None), echoed("<>")]
    assert len(set(fresh)) == 3
    assert all(re.fullmatch(r"req-[0-9a-f]+", one) for one in fresh)


async def test_several_processes_count_together(builder, tmp_path):
    files = [tmp_path / f"{number}.counts" for number in range(2)]
    config = server_config(builder.model("writer", "generate"), api_workers=2)
    config = msgspec.structs.replace(config, count_files=tuple(map(str, files)))
    deployment = builder.open(config)
    service = Service(config, Registry.load(config.models, all_endpoints()), index=1)
    service.metrics.of_model("writer").prompt_tokens.add(7)
    deployment.post("/v1/completions", {"prompt": "Hello"})
    assert b'penstock_prompt_tokens_total{model="writer"} 12.0' in await service.metrics.page()
    assert metric(deployment, "penstock_prompt_tokens_total", model="writer") == 5 + 7
    assert metric(deployment, "penstock_in_flight", what="requests") == 0
    assert metric(deployment, "penstock_engine_up", model="writer") == 1
