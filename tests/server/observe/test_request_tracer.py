"""A real API process that sends traces to a collector on the loopback."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.patience import PATIENCE, wait_until
from tests.server.canned_server import CannedServer
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.spans import requests_to, spans, values
from tests.server.support import server_config

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
COMPLETION = {"prompt": "a prompt that nobody may see", "max_tokens": 3}
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield


def canned() -> Iterator[CannedServer]:
    with CannedServer([TAKEN]) as server:
        yield server


shared_collector = pytest.fixture(canned, scope="module")
collector = pytest.fixture(canned)
"""For a deployment of one's own."""


@pytest.fixture(scope="module")
def shared_traced(module_builder: DeploymentBuilder, shared_collector: CannedServer) -> Deployment:
    return opened(module_builder, shared_collector.url)


@pytest.fixture
def traced(shared_traced: Deployment, shared_collector: CannedServer) -> Deployment:
    """A deployment for all tests that leave it as it was; its collector has nothing yet."""
    shared_collector.requests.clear()
    return shared_traced


def opened(builder: DeploymentBuilder, url: str) -> Deployment:
    writer, embedder, _ = builder.models()
    traces = f"{url}/v1/traces"
    config = server_config(writer, embedder, api_key="sesame", otlp_traces_endpoint=traces)
    return builder.open(config)


def awaited(collector: CannedServer, count: int) -> list[Span]:
    """So many spans, each request's behind its parts, and not one more."""
    wait_until(lambda: len(spans(collector)) >= count)
    time.sleep(0.3)
    found = spans(collector)
    assert len(found) == count, [span.name for span in found]
    return found


@pytest.mark.parametrize("streamed", [False, True])
def test_the_parts_of_a_completion(
    traced: Deployment, shared_collector: CannedServer, streamed: bool
) -> None:
    parent = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "a=b"}
    before = time.time_ns()
    traced.http.post(
        "/v1/completions", json={**COMPLETION, "stream": streamed}, headers={**KEY, **parent}
    )
    *parts, root = awaited(shared_collector, 5)
    assert before - 10**9 < root.start_time_unix_nano < root.end_time_unix_nano < time.time_ns()
    assert root.name == "POST /v1/completions"
    assert root.kind == Span.SPAN_KIND_SERVER
    assert (root.parent_span_id.hex(), root.trace_state) == (CALLER, "a=b")
    assert [part.name for part in parts] == ["tokenize", "queue", "prefill", "decode"]
    for part in parts:
        assert part.parent_span_id == root.span_id
        assert part.start_time_unix_nano >= root.start_time_unix_nano
        assert part.end_time_unix_nano <= root.end_time_unix_nano
    for part, following in pairwise(parts):
        assert part.end_time_unix_nano == following.start_time_unix_nano
    assert {span.trace_id.hex() for span in (root, *parts)} == {TRACE}
    known = values(root)
    assert (known["gen_ai.request.model"], known["gen_ai.usage.output_tokens"]) == ("writer", 3)
    assert known["http.response.status_code"] == 200
    text = b"".join(shared_collector.requests)
    assert b"penstock" in text
    assert b"nobody may see" not in text
    assert b"sesame" not in text


def test_requests_that_fail_have_spans(builder: DeploymentBuilder, collector: CannedServer) -> None:
    deployment = opened(builder, collector.url)
    deployment.http.post("/v1/completions", json={"max_tokens": 1}, headers=KEY)
    deployment.http.post("/v1/completions", json=COMPLETION)
    deployment.http.get("/no/where", headers=KEY)
    deployment.engines["writer"].kill()
    wait_until(lambda: deployment.http.get("/health/live").status_code == 503)
    deployment.http.post("/v1/completions", json=COMPLETION, headers=KEY)
    found = awaited(collector, 4)
    statuses = [values(span)["http.response.status_code"] for span in found]
    assert statuses == [400, 401, 404, 503]
    errors = [span.status.code == Status.STATUS_CODE_ERROR for span in found]
    assert errors == [False, False, False, True]
    assert found[2].name == "GET"
    assert "http.route" not in values(found[2])


def test_who_continues_no_trace(traced: Deployment, shared_collector: CannedServer) -> None:
    """One whose `traceparent` is nonsense begins one; one that does not sample has none."""
    body = {"model": "embedder", "input": ["one", "two"]}
    for parent in ("nonsense", f"00-{TRACE}-{CALLER}-00"):
        traced.http.post("/v1/embeddings", json=body, headers={**KEY, "traceparent": parent})
    found = awaited(shared_collector, 4)
    assert [span.name for span in found] == ["tokenize", "queue", "prefill", "POST /v1/embeddings"]
    assert found[-1].parent_span_id == b""


def test_two_callers_are_none_and_their_states_one_list(
    traced: Deployment, shared_collector: CannedServer
) -> None:
    parent = ("traceparent", f"00-{TRACE}-{CALLER}-01")
    headers = [*KEY.items(), ("tracestate", "a=1"), ("tracestate", "b=2")]
    traced.http.get("/v1/models", headers=[*headers, parent])
    traced.http.get("/v1/models", headers=[*headers, parent, parent])
    one, two = awaited(shared_collector, 2)
    assert (one.parent_span_id.hex(), one.trace_state) == (CALLER, "a=1,b=2")
    assert (two.parent_span_id, two.trace_state) == (b"", "")


def test_a_client_that_leaves(
    traced: Deployment, shared_collector: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced.engines["writer"].script, "step_seconds", 0.05)
    body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with traced.http.stream("POST", "/v1/completions", json=body, headers=KEY) as answer:
        lines = answer.iter_lines()
        assert next(lines)
        time.sleep(0.2)
        assert not shared_collector.requests
    *parts, root = awaited(shared_collector, 5)
    assert values(root)["http.response.status_code"] == 499
    assert root.status.code == Status.STATUS_CODE_UNSET
    decode = parts[-1]
    assert decode.name == "decode"
    assert decode.end_time_unix_nano - decode.start_time_unix_nano > 0.1e9


def test_the_sdk_reads_its_variables_and_sends_what_waits_at_the_end(
    builder: DeploymentBuilder, collector: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    deployment = opened(builder, collector.url)
    deployment.http.get("/v1/models", headers=KEY)
    parent = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    deployment.http.get("/v1/models", headers={**KEY, **parent})
    assert not collector.requests
    deployment.api.drain()
    assert deployment.api.process.wait(PATIENCE) == 0
    (only,) = spans(collector)
    assert only.trace_id.hex() == TRACE
    request = requests_to(collector)[0]
    resource = {each.key: each.value for each in request.resource_spans[0].resource.attributes}
    assert resource["service.name"].string_value == "ours"
    assert resource["telemetry.sdk.language"].string_value == "python"


def test_probes_have_none(traced: Deployment, shared_collector: CannedServer) -> None:
    for path in ("/health", "/health/live", "/metrics", "/", "/status"):
        assert traced.http.get(path, headers=KEY).status_code == 200
    traced.http.get("/v1/models", headers=KEY)
    (only,) = awaited(shared_collector, 1)
    assert only.name == "GET /v1/models"


SLOW = ([b"HTTP/1.1 200 OK\r\n", b"Content-Length: 0\r\n\r\n"], 8.0)
FAILING = ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], 0.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(SLOW, None), (FAILING, "Not Found"), (None, "Connection refused")],
    ids=["slow", "failing", "away"],
)
def test_a_collector_in_trouble_holds_up_nobody(
    builder: DeploymentBuilder,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: tuple[list[bytes], float] | None,
    why: str | None,
) -> None:
    """And is one line of the log, unless it is only slow."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    said: list[str] = []

    def lines() -> list[str]:
        said.append(capfd.readouterr().err)
        return [line for line in "".join(said).splitlines() if "no traces can be sent" in line]

    pieces, pause = answer or ([], 0.0)
    with CannedServer(pieces, pause=pause) as collector:
        deployment = opened(builder, collector.url if answer else "http://127.0.0.1:9")
        slowest = 0.0
        for _ in range(150):
            started = time.monotonic()
            deployment.http.get("/v1/models", headers=KEY)
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 6
        wait_until(lambda: collector.requests if answer else lines())
        started = time.monotonic()
        deployment.api.drain()
        assert deployment.api.process.wait(PATIENCE) == 0
        assert time.monotonic() - started < 20
    found = lines()
    assert [why is not None and why in line for line in found] == [True] * (why is not None)
    assert all("/v1/traces, they are dropped: " in line for line in found)
    assert "Queue full" not in "".join(said)
    assert "opentelemetry" not in "".join(said)
