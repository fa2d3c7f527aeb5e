"""Exactly one line for each request that comes to an API process, however it ends."""

import json
import time
from typing import Any

import httpx
import pytest

from engine_core.messages import Failed
from tests.patience import wait_until
from tests.server.api.test_ops import metric
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

KEY = {"Authorization": "Bearer sesame"}
TELLING = "a prompt that nobody may see"
COMPLETION = {"prompt": TELLING, "max_tokens": 3}


@pytest.fixture(scope="module")
def logged(module_builder: DeploymentBuilder) -> Deployment:
    writer = module_builder.model("writer", "generate")
    own = {"max_body_size": 1000, "cors_origins": ("https://page",), "access_log": "json"}
    return module_builder.open(server_config(writer, api_key="sesame", **own))


class Log:
    """The lines since this was made."""

    def __init__(self, deployment: Deployment) -> None:
        self._file = deployment.api.output
        time.sleep(0.3)
        self._before = len(self._file.read_bytes())

    def text(self) -> str:
        return self._file.read_bytes()[self._before :].decode()

    def lines(self, count: int) -> list[dict[str, Any]]:
        """So many lines, and not one more."""
        wait_until(lambda: self.text().count("\n") >= count)
        time.sleep(0.25)
        lines = [json.loads(line) for line in self.text().splitlines()]
        assert len(lines) == count, lines
        return lines


def send(deployment: Deployment, *parts: bytes) -> bytes:
    """What is answered to these bytes, until the connection ends."""
    with deployment.connect() as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.1)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
        return answer


def test_every_answer_has_one_line(logged: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    log, http, path = Log(logged), logged.http, "/v1/completions"
    http.post(path, json=COMPLETION, headers={**KEY, "x-request-id": "mine"})
    http.post(path, json={**COMPLETION, "stream": True}, headers=KEY)
    http.post(path, json=COMPLETION, headers={"Authorization": "Bearer wrong"})
    http.post(path, json={**COMPLETION, "model": "nobody"}, headers=KEY)
    http.get("/no/where?key=sesame", headers=KEY)
    http.get(path, headers=KEY)
    http.post(path, content=b"{", headers=KEY)
    http.post(path, content=b" " * 2000, headers=KEY)
    asks = {"Origin": "https://page", "Access-Control-Request-Method": "POST"}
    http.options(path, headers=asks)
    http.options(path, headers=KEY)
    http.head("/health")
    refusal = Failed(0, "overloaded", "full", None, 9.0)
    monkeypatch.setattr(logged.engines["writer"].script, "refusal", refusal)
    http.post(path, json=COMPLETION, headers=KEY)
    lines = log.lines(12)
    assert [(line["status"], line["error"]) for line in lines] == [
        (200, None),
        (200, None),
        (401, "invalid_api_key"),
        (404, "model_not_found"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (400, "invalid_request"),
        (413, "body_too_large"),
        (200, None),
        (405, "method_not_allowed"),
        (200, None),
        (429, "overloaded"),
    ]
    first, stream = lines[:2]
    assert (first["id"], first["client"], first["method"]) == ("mine", "127.0.0.1", "POST")
    for line in (first, stream):
        assert (line["path"], line["model"], line["output_tokens"]) == (path, "writer", 3)
        assert line["prompt_tokens"] > 3
        assert 0 < line["first_token_seconds"] <= line["total_seconds"] < 5
        assert line["queue_seconds"] >= 0
    assert [line["method"] for line in lines[8:11]] == ["OPTIONS", "OPTIONS", "HEAD"]
    assert lines[4]["path"] == "/no/where"
    for secret in ("sesame", "wrong", TELLING, "nobody"):
        assert secret not in log.text()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves(
    logged: Deployment, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    writer = logged.engines["writer"]
    monkeypatch.setattr(writer.script, "step_seconds", 0.05)
    log = Log(logged)
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": streamed}
    content, key = json.dumps(body).encode(), "Authorization: Bearer sesame\r\n"
    with logged.begin("/v1/completions", content, more=key) as connection:
        wait_until(lambda: writer.running == 1)
        if streamed:
            assert connection.recv(1 << 16)
        time.sleep(0.2)
        assert log.text() == ""  # it is logged at its end
    (line,) = log.lines(1)
    assert (line["status"], line["error"], line["model"]) == (499, None, "writer")
    assert (line["output_tokens"], line["first_token_seconds"]) > (0, 0)


HOST = b"Host: a\r\n"
BEGUN = (
    b"POST /embed HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sesame\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    ("parts", "status", "method", "path"),
    [
        ([b"\x16\x03\x01 this is TLS\r\n\r\n"], 400, None, None),
        ([b"GET / HTTP/1.1\r\n\r\n"], 400, "GET", "/"),
        ([b"GET /a?key=sesame HTTP/1.1\r\n" + HOST + b"No Name: a\r\n\r\n"], 400, "GET", "/a"),
        ([b"GET http://a:sesame@b/c? HTTP/1.1\r\n\r\n"], 400, "GET", "/c"),
        ([b"GET http://[ HTTP/1.1\r\n" + HOST + b"\r\n"], 400, "GET", None),
        ([b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 70_000], 431, "GET", "/"),
        ([BEGUN, b"no number\r\n"], 400, "POST", "/embed"),
    ],
)
def test_requests_that_cannot_be_read(
    logged: Deployment, parts: list[bytes], status: int, method: str, path: str
) -> None:
    endpoint = {"endpoint": "/embed" if path == "/embed" else "other", "status": str(status)}
    answered = metric(logged, "penstock_http_requests_total", **endpoint)
    error = {400: "invalid_request", 431: "head_too_large"}[status]
    refusals = metric(logged, "penstock_refusals_total", reason=error)
    log = Log(logged)
    answer = send(logged, *parts)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    (line,) = log.lines(1)
    assert (line["status"], line["method"], line["path"]) == (status, method, path)
    assert line["client"] == "127.0.0.1"
    assert b"x-request-id: %b\r\n" % line["id"].encode() in answer
    assert "sesame" not in log.text()
    assert metric(logged, "penstock_http_requests_total", **endpoint) == answered + 1
    assert metric(logged, "penstock_refusals_total", reason=error) == refusals + 1


def test_garbage_after_a_request_is_not_taken_for_it(logged: Deployment) -> None:
    log = Log(logged)
    send(logged, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", b"\x00\x01\r\n\r\n")
    good, bad = log.lines(2)
    assert (good["status"], good["path"]) == (200, "/health")
    assert (bad["status"], bad["path"]) == (400, None)


def test_without_it_nothing_is_written(deployment: Deployment) -> None:
    assert httpx.get(f"{deployment.api.url}/health").status_code == 200
    assert deployment.api.output.read_bytes() == b""
