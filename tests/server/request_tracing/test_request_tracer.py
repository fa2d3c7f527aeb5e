"""A real API process that sends traces to a collector on the loopback."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from server.settings.api_keys import digests
from tests.server.canned_server import CannedServer
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config
from tests.server.waiting import wait_until

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
COMPLETION = {"prompt": "a prompt that nobody may see", "max_tokens": 3}
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def collector() -> Iterator[CannedServer]:
    with CannedServer([TAKEN]) as server:
        yield server


def opened(builder: DeploymentBuilder, url: str) -> Deployment:
    config = server_config(builder.model("writer", "generate"), builder.model("embedder", "embed"))
    return builder.open(
        msgspec.structs.replace(
            config, api_keys=digests(["sesame"]), otlp_traces_endpoint=f"{url}/v1/traces"
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
    builder: DeploymentBuilder, collector: CannedServer, streamed: bool
) -> None:
    deployment = opened(builder, collector.url)
    parent = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "a=b"}
    before = time.time_ns()
    deployment.http.post(
        "/v1/completions", json={**COMPLETION, "stream": streamed}, headers={**KEY, **parent}
    )
    *parts, root = awaited(collector, 5)
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
    text = b"".join(collector.requests)
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
    assert found[2].name == "GET other"


def test_an_embedding(builder: DeploymentBuilder, collector: CannedServer) -> None:
    deployment = opened(builder, collector.url)
    body = {"model": "embedder", "input": ["one", "two"]}
    deployment.http.post("/v1/embeddings", json=body, headers={**KEY, "traceparent": "nonsense"})
    found = awaited(collector, 4)
    assert [span.name for span in found] == ["tokenize", "queue", "prefill", "POST /v1/embeddings"]
    assert found[-1].parent_span_id == b""


def test_a_caller_that_does_not_sample(builder: DeploymentBuilder, collector: CannedServer) -> None:
    deployment = opened(builder, collector.url)
    for flags in ("00", "01"):
        deployment.http.post(
            "/v1/completions",
            json=COMPLETION,
            headers={**KEY, "traceparent": f"00-{TRACE}-{CALLER}-{flags}"},
        )
    awaited(collector, 5)


def test_probes_have_none(builder: DeploymentBuilder, collector: CannedServer) -> None:
    deployment = opened(builder, collector.url)
    for path in ("/health", "/health/live", "/metrics", "/"):
        deployment.http.get(path)
    deployment.http.get("/v1/models", headers=KEY)
    (only,) = awaited(collector, 1)
    assert only.name == "GET /v1/models"


def test_what_waits_is_sent_at_the_end(
    builder: DeploymentBuilder, collector: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    deployment = opened(builder, collector.url)
    deployment.http.post("/v1/completions", json=COMPLETION, headers=KEY)
    assert not collector.requests
    deployment.api.terminate()
    assert deployment.api.process.wait(10) == 0
    assert len(spans(collector)) == 5


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
    wait_until(lambda: bool(lines()), seconds=10)
    deployment.http.post("/v1/completions", json=COMPLETION, headers=KEY)
    started = time.monotonic()
    deployment.api.terminate()
    assert deployment.api.process.wait(10) == 0
    assert time.monotonic() - started < 4
    (line,) = lines()
    assert line.endswith("no traces can be sent to http://127.0.0.1:9/v1/traces; they are dropped")
    assert "opentelemetry" not in "".join(said)
