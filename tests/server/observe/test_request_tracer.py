"""A real API process that sends traces to a collector on the loopback."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.patience import PATIENCE, wait_until
from tests.server.canned_server import CannedServer
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import api_keys, server_config

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
COMPLETION = {"prompt": "a prompt that nobody may see", "max_tokens": 3}
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture(scope="module")
def shared_collector() -> Iterator[CannedServer]:
    with CannedServer([TAKEN]) as server:
        yield server


@pytest.fixture(scope="module")
def shared_traced(
    module_builder: DeploymentBuilder, shared_collector: CannedServer
) -> Iterator[Deployment]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield opened(module_builder, shared_collector.url)


@pytest.fixture
def collector() -> Iterator[CannedServer]:
    """For a deployment of one's own."""
    with CannedServer([TAKEN]) as server:
        yield server


@pytest.fixture
def traced(shared_traced: Deployment, shared_collector: CannedServer) -> Deployment:
    """A deployment for all tests that leave it as it was; its collector has nothing yet."""
    shared_collector.requests.clear()
    return shared_traced


def opened(builder: DeploymentBuilder, url: str) -> Deployment:
    config = server_config(builder.model("writer", "generate"), builder.model("embedder", "embed"))
    return builder.open(
        msgspec.structs.replace(
            config, api_keys=api_keys("sesame"), otlp_traces_endpoint=f"{url}/v1/traces"
        )
    )


def spans(collector: CannedServer) -> list[Span]:
    """All that have come so far."""
    requests = [ExportTraceServiceRequest.FromString(body) for body in collector.requests]
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def awaited(collector: CannedServer, count: int) -> list[Span]:
    """So many spans, each request's behind its parts, and not one more."""
    wait_until(lambda: len(spans(collector)) >= count)
    time.sleep(0.3)
    found = spans(collector)
    assert len(found) == count, [span.name for span in found]
    return found


def values(span: Span) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, str(attribute.value.WhichOneof("value")))
        for attribute in span.attributes
    }


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


def test_an_embedding(traced: Deployment, shared_collector: CannedServer) -> None:
    body = {"model": "embedder", "input": ["one", "two"]}
    traced.http.post("/v1/embeddings", json=body, headers={**KEY, "traceparent": "nonsense"})
    found = awaited(shared_collector, 4)
    assert [span.name for span in found] == ["tokenize", "queue", "prefill", "POST /v1/embeddings"]
    assert found[-1].parent_span_id == b""


def test_a_caller_that_does_not_sample(traced: Deployment, shared_collector: CannedServer) -> None:
    for flags in ("00", "01"):
        traced.http.post(
            "/v1/completions",
            json=COMPLETION,
            headers={**KEY, "traceparent": f"00-{TRACE}-{CALLER}-{flags}"},
        )
    awaited(shared_collector, 5)


def test_two_callers_are_none_and_their_states_one_list(
    traced: Deployment, shared_collector: CannedServer
) -> None:
    parent = ("traceparent", f"00-{TRACE}-{CALLER}-01")
    headers = [
        ("Authorization", KEY["Authorization"]),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
    ]
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
    request = ExportTraceServiceRequest.FromString(collector.requests[0])
    resource = {each.key: each.value for each in request.resource_spans[0].resource.attributes}
    assert resource["service.name"].string_value == "ours"
    assert resource["telemetry.sdk.language"].string_value == "python"


def test_probes_have_none(traced: Deployment, shared_collector: CannedServer) -> None:
    for path in ("/health", "/health/live", "/metrics", "/", "/status"):
        assert traced.http.get(path, headers=KEY).status_code == 200
    traced.http.get("/v1/models", headers=KEY)
    (only,) = awaited(shared_collector, 1)
    assert only.name == "GET /v1/models"


def test_a_collector_that_is_away(
    builder: DeploymentBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment = opened(builder, "http://127.0.0.1:9")
    said: list[str] = []

    def lines() -> list[str]:
        said.append(capfd.readouterr().err)
        return [line for line in "".join(said).splitlines() if "127.0.0.1:9" in line]

    for _ in range(20):
        answer = deployment.http.post("/v1/completions", json=COMPLETION, headers=KEY)
        assert answer.status_code == 200
    wait_until(lambda: bool(lines()))
    deployment.http.post("/v1/completions", json=COMPLETION, headers=KEY)
    started = time.monotonic()
    deployment.api.drain()
    assert deployment.api.process.wait(PATIENCE) == 0
    assert time.monotonic() - started < 20
    (line,) = lines()
    assert " no traces can be sent to http://127.0.0.1:9/v1/traces, they are dropped: " in line
    assert "Connection refused" in line
    assert "opentelemetry" not in "".join(said)


SLOW = ([b"HTTP/1.1 200 OK\r\n", b"Content-Length: 0\r\n\r\n"], 8.0)
FAILING = ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], 0.0)


@pytest.mark.parametrize(("answer", "lines"), [(SLOW, 0), (FAILING, 1)], ids=["slow", "failing"])
def test_a_collector_in_trouble_holds_up_nobody(
    builder: DeploymentBuilder,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: tuple[list[bytes], float],
    lines: int,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    pieces, pause = answer
    with CannedServer(pieces, pause=pause) as collector:
        deployment = opened(builder, collector.url)
        slowest = 0.0
        for _ in range(150):
            started = time.monotonic()
            deployment.http.get("/v1/models", headers=KEY)
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 6
        wait_until(lambda: collector.requests != [])
        started = time.monotonic()
        deployment.api.drain()
        assert deployment.api.process.wait(PATIENCE) == 0
        assert time.monotonic() - started < 20
    said = capfd.readouterr().err
    assert said.count("no traces can be sent") == lines
    assert said.count("Not Found") == lines
    assert "Queue full" not in said
