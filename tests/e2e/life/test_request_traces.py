"""The traces of a real daemon with two API processes and the demo models."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from server.demo import EMBEDDER_NAME, GENERATOR_NAME
from tests.e2e.daemon import running
from tests.server.canned_server import CannedServer, answer

TRACE = "0af7651916cd43dd8448eb211c80319c"
REQUESTS = 8
TOKENS = 8


@pytest.fixture(scope="module")
def spans() -> Iterator[list[Span]]:
    """Of streamed completions, whose callers are numbered, an embedding and a refusal."""
    with CannedServer([answer(b"")]) as collector:
        arguments = ["--otlp-traces-endpoint", f"{collector.url}/v1/traces", "--api-workers", "2"]
        with running(*arguments, "--threads", "1") as daemon:
            _ask(daemon.url)
            os.kill(daemon.pid, signal.SIGTERM)
            assert daemon.exit_code() == 0
        requests = [ExportTraceServiceRequest.FromString(body) for body in collector.requests]
        yield [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def _ask(url: str) -> None:
    body = {"model": GENERATOR_NAME, "prompt": "The function", "max_tokens": TOKENS}
    streamed = {**body, "stream": True, "ignore_eos": True}
    for number in range(1, REQUESTS + 1):
        caller = {"traceparent": f"00-{TRACE}-{number:016x}-01"}
        found = httpx.post(f"{url}/v1/completions", json=streamed, headers=caller, timeout=60)
        assert found.text.endswith("data: [DONE]\n\n")
    texts = {"model": EMBEDDER_NAME, "input": ["one", "two"]}
    assert httpx.post(f"{url}/v1/embeddings", json=texts, timeout=60).status_code == 200
    refused = httpx.post(f"{url}/v1/completions", json={**body, "model": "nobody"})
    assert refused.status_code == 404


def _values(span: Span) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


def _seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def _parts(spans: list[Span], root: Span) -> list[Span]:
    return [span for span in spans if span.parent_span_id == root.span_id]


def test_each_completion_continues_its_caller_s_trace(spans: list[Span]) -> None:
    roots = [span for span in spans if span.parent_span_id.hex().startswith("0000")]
    callers = sorted(int(root.parent_span_id.hex(), 16) for root in roots)
    assert callers == list(range(1, REQUESTS + 1))
    for root in roots:
        parts = _parts(spans, root)
        assert [part.name for part in parts] == ["tokenize", "queue", "prefill", "decode"]
        assert {span.trace_id.hex() for span in (root, *parts)} == {TRACE}
        known = _values(root)
        assert known["gen_ai.request.model"] == GENERATOR_NAME
        assert known["gen_ai.usage.output_tokens"] == TOKENS


def test_their_times_add_up(spans: list[Span]) -> None:
    for root in [span for span in spans if span.trace_id.hex() == TRACE and span.kind == 2]:
        *until_first, decode = _parts(spans, root)
        known = _values(root)
        first = known["gen_ai.latency.time_to_first_token"]
        assert 0 < first < _seconds(root) == pytest.approx(known["gen_ai.latency.e2e"], abs=1e-6)
        assert 0 < sum(map(_seconds, until_first)) <= first + 1e-6
        at_first = (decode.start_time_unix_nano - root.start_time_unix_nano) / 1e9
        assert at_first == pytest.approx(first, abs=1e-6)
        assert 0 < _seconds(decode) <= _seconds(root) - first + 1e-6


def test_an_embedding_and_a_refusal_begin_their_own(spans: list[Span]) -> None:
    roots = [span for span in spans if not span.parent_span_id]
    embedding, refusal = sorted(roots, key=lambda span: span.start_time_unix_nano)
    assert embedding.name == "POST /v1/embeddings"
    assert [part.name for part in _parts(spans, embedding)] == ["tokenize", "queue", "prefill"]
    assert refusal.name == "POST /v1/completions"
    assert _parts(spans, refusal) == []
    known = _values(refusal)
    assert (known["http.response.status_code"], known["error.type"]) == (404, "model_not_found")
