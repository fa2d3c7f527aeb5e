"""Clients that leave, engines that die, deployments that are full, daemons that stop."""

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from engine_core.messages import Failed
from server.service.ledger import REQUEST_BYTES
from server.settings.settings import Limits
from tests.patience import PATIENCE, wait_until
from tests.server.api.test_ops import metric
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

ENDLESS = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}


def two_models(builder: DeploymentBuilder, **config) -> Deployment:
    """A generator and an embedder of one's own."""
    return builder.open(server_config(*builder.models()[:2], **config))


def writer_alone(builder: DeploymentBuilder, *, ready: bool = True, **config) -> Deployment:
    return builder.open(server_config(builder.model("writer", "generate"), **config), ready=ready)


def is_error(response: httpx.Response, status: int, code: str) -> bool:
    return (response.status_code, response.json()["error"]["code"]) == (status, code)


def slow(deployment: Deployment) -> None:
    """The engines take their time: 20 ms a token, vectors never."""
    for engine in deployment.engines.values():
        engine.script.step_seconds = 0.02
    if "embedder" in deployment.engines:
        deployment.engines["embedder"].script.held = True


def last_event(response: httpx.Response) -> dict:
    return json.loads(response.text.strip().rpartition("data: ")[2])


def health(deployment: Deployment) -> set[str]:
    """The codes with which all probes of readiness say that no requests are taken."""
    answers = [deployment.http.get(path) for path in ("/health", "/health/ready", "/ping")]
    assert [answer.status_code for answer in answers] == [503, 503, 503]
    return {answer.json()["error"]["code"] for answer in answers}


@contextmanager
def running(deployment: Deployment):
    """One request of every kind in flight, and how each ended."""
    slow(deployment)
    asked = [
        ("/v1/completions", ENDLESS),
        ("/v1/completions", {**ENDLESS, "stream": True}),
        ("/v1/embeddings", {"input": "a"}),
    ]
    with ThreadPoolExecutor(3) as pool:
        requests = [pool.submit(deployment.post, *each) for each in asked]
        wait_until(lambda: sum(engine.running for engine in deployment.engines.values()) == 3)
        wait_until(lambda: metric(deployment, "penstock_in_flight", what="requests") == 3)
        yield requests


def ask(deployment: Deployment, path: str, body: dict) -> socket.socket:
    """A connection on which a request has been sent."""
    return deployment.begin(path, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "body", "engine"),
    [
        ("/v1/completions", {**ENDLESS, "stream": True}, "writer"),
        ("/v1/completions", ENDLESS, "writer"),
        ("/v1/embeddings", {"input": "a"}, "embedder"),
        ("/v1/rerank", {"model": "embedder", "query": "a", "documents": ["a"]}, "embedder"),
    ],
)
def test_a_client_that_leaves_is_aborted(deployment, path, body, engine):
    slow(deployment)
    fake = deployment.engines[engine]
    with ask(deployment, path, body) as connection:
        wait_until(lambda: fake.running == 1)
        if body.get("stream"):
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: fake.aborted == [fake.received[0].id])
    wait_until(lambda: metric(deployment, "penstock_in_flight", what="requests") == 0)
    assert fake.running == 0
    fake.script.held = False
    short = {"max_tokens": 1, "stream": False} if engine == "writer" else {}
    assert deployment.post(path, {**body, **short}).status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_before_the_engine_has_accepted(deployment, streamed):
    fake = deployment.engines["writer"]
    fake.script.deaf = True
    with ask(deployment, "/v1/completions", {**ENDLESS, "stream": streamed}):
        wait_until(lambda: len(fake.received) == 1)
    wait_until(lambda: fake.aborted == [fake.received[0].id])
    wait_until(lambda: metric(deployment, "penstock_in_flight", what="requests") == 0)


def test_a_client_that_does_not_read_holds_up_nobody(deployment, say):
    say("The quick brown fox", end=False)
    with ask(deployment, "/v1/completions", {**ENDLESS, "stream": True, "n": 64, "logprobs": 5}):
        wait_until(lambda: len(deployment.engines["writer"].received) == 1)
        for _ in range(20):
            assert deployment.post("/v1/completions", {"prompt": "a"}).status_code == 200
    wait_until(lambda: metric(deployment, "penstock_in_flight", what="rows") == 0)


def test_a_queue_that_is_too_long_says_how_long_it_is(builder):
    """On every endpoint; when it is shorter again, all are served."""
    deployment = two_models(builder)
    text = "model m is overloaded: a request that comes now would wait about 612 s"
    for engine in deployment.engines.values():
        engine.script.refusal = Failed(0, "overloaded", text, None, 611.2)
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/embed", {"inputs": "a"}),
    ):
        refused = [deployment.post(path, body) for _ in range(4)]
        told = {(answer.status_code, answer.headers["retry-after"]) for answer in refused}
        assert told == {(429, "612")}
        if path.startswith("/v1/"):
            error = refused[-1].json()["error"]
            assert (error["code"], error["message"]) == ("overloaded", text)
    assert deployment.post("/tokenize", {"model": "writer", "prompt": "a"}).status_code == 200
    for engine in deployment.engines.values():
        engine.script.refusal = None
    wait_until(lambda: deployment.post("/v1/completions", {"prompt": "a"}).status_code == 200)
    wait_until(lambda: deployment.post("/v1/embeddings", {"input": "a"}).status_code == 200)


def test_many_clients_and_a_small_deployment(builder):
    """Everyone gets one answer, 200 or 429, and nothing is in flight afterwards."""
    limits = Limits(max_unread_size=4 * REQUEST_BYTES)
    deployment = writer_alone(builder, limits=limits)
    deployment.engines["writer"].script.step_seconds = 0.01
    scored = {"prompt": "a", "max_tokens": 20, "logprobs": 5}
    bodies = [{**scored, "stream": stream} for stream in (True, False) * 12]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: deployment.post("/v1/completions", body), bodies))
    assert {answer.status_code for answer in answers} == {200, 429}
    refusal = next(answer for answer in answers if answer.status_code == 429)
    assert refusal.headers["retry-after"] == "1"
    assert is_error(refusal, 429, "overloaded")
    # Which of the two fills it first is a matter of time.
    held = r"--max-unread-size.* of them for (log-probabilities|the body of this request)"
    assert re.search(held, refusal.json()["error"]["message"])
    for what in ("requests", "rows"):
        wait_until(lambda what=what: metric(deployment, "penstock_in_flight", what=what) == 0)
    deployment.ask("/v1/completions", **scored)


def test_an_engine_that_dies(builder):
    deployment = two_models(builder)
    with running(deployment) as (completion, stream, embedding):
        deployment.engines["writer"].kill()
        assert is_error(completion.result(), 500, "engine_dead")
        assert stream.result().status_code == 200
        assert last_event(stream.result())["error"]["code"] == "engine_dead"
        assert is_error(deployment.http.get("/health/live"), 503, "unhealthy")
        assert health(deployment) == {"unhealthy"}
        refused = deployment.post("/v1/completions", {"prompt": "a"})
        assert is_error(refused, 503, "unhealthy")
        assert "writer" in refused.json()["error"]["message"]
        assert metric(deployment, "penstock_engine_up", model="writer") == 0
        deployment.engines["embedder"].script.held = False
        assert embedding.result().status_code == 200


def test_an_engine_that_is_still_loading(builder):
    deployment = writer_alone(builder, ready=False)
    response = deployment.post("/v1/completions", {"prompt": "a"})
    assert is_error(response, 503, "not_ready")
    assert int(response.headers["retry-after"]) > 0
    assert health(deployment) == {"not_ready"}
    assert deployment.http.get("/health/live").status_code == 200
    # Probes that say so refuse nothing.
    assert metric(deployment, "penstock_refusals_total", reason="not_ready") == 1
    deployment.engines["writer"].script.ready = True
    deployment.api.wait_ready()
    assert deployment.http.get("/health").status_code == 200
    assert deployment.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_a_drain_lets_what_runs_finish(builder):
    deployment = two_models(builder, drain_timeout=20)
    with running(deployment) as (completion, stream, embedding):
        deployment.api.drain()
        wait_until(lambda: deployment.http.get("/health/ready").status_code == 503)
        refused = deployment.post("/v1/completions", {"prompt": "a"})
        assert is_error(refused, 503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["connection"] == "close"
        assert health(deployment) == {"draining"}
        assert deployment.http.get("/health/live").status_code == 200
        deployment.engines["writer"].script.step_seconds = 0
        deployment.engines["embedder"].script.held = False
        assert completion.result().json()["choices"][0]["finish_reason"] == "length"
        assert stream.result().text.endswith("data: [DONE]\n\n")
        assert embedding.result().status_code == 200
    assert deployment.api.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("drain_timeout", [0.3, 60])
def test_the_end_of_the_drain_tells_everyone_once(builder, drain_timeout):
    """After its time, or at once by a second signal."""
    deployment = two_models(builder, drain_timeout=drain_timeout)
    with running(deployment) as (completion, stream, embedding):
        deployment.api.drain()
        if drain_timeout == 60:
            wait_until(lambda: deployment.http.get("/health/ready").status_code == 503)
            deployment.api.drain()
        for request in (completion, embedding):
            assert is_error(request.result(), 503, "draining")
        assert stream.result().status_code == 200
        assert stream.result().text.count('"error"') == 1
        assert "[DONE]" not in stream.result().text
        assert last_event(stream.result())["error"]["code"] == "draining"
    assert deployment.api.process.wait(PATIENCE) == 0
    wait_until(lambda: len(deployment.engines["writer"].aborted) == 2)


def test_an_idle_daemon_stops_within_a_moment(builder):
    deployment = writer_alone(builder, drain_timeout=60)
    deployment.http.get("/version")  # a connection that stays open
    deployment.api.drain()
    assert deployment.api.process.wait(PATIENCE) == 0
