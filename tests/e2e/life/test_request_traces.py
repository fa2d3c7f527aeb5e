"""The traces of a real daemon with two API processes and the demo models."""

import os
import signal

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from server.demo import EMBEDDER_NAME, GENERATOR_NAME
from tests.e2e.daemon import running
from tests.server.canned_server import CannedServer, answer
from tests.server.spans import spans, values

TRACE = "0af7651916cd43dd8448eb211c80319c"
REQUESTS = 8
TOKENS = 8


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


def _seconds(span: Span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_traces_continue_their_callers_and_their_times_add_up() -> None:
    """Streamed completions, whose callers are numbered; an embedding and a refusal begin traces."""
    with CannedServer([answer(b"")]) as collector:
        arguments = ["--otlp-traces-endpoint", f"{collector.url}/v1/traces", "--api-workers", "2"]
        with running(*arguments, "--threads", "1") as daemon:
            _ask(daemon.url)
            os.kill(daemon.pid, signal.SIGTERM)
            assert daemon.exit_code() == 0
        found = spans(collector)
    roots = [span for span in found if span.parent_span_id.hex().startswith("0000")]
    callers = sorted(int(root.parent_span_id.hex(), 16) for root in roots)
    assert callers == list(range(1, REQUESTS + 1))
    assert len([span for span in found if not span.parent_span_id]) == 2
    for root in roots:
        parts = [span for span in found if span.parent_span_id == root.span_id]
        assert [part.name for part in parts] == ["tokenize", "queue", "prefill", "decode"]
        assert {span.trace_id.hex() for span in (root, *parts)} == {TRACE}
        known = values(root)
        assert known["gen_ai.request.model"] == GENERATOR_NAME
        assert known["gen_ai.usage.output_tokens"] == TOKENS
        *until_first, decode = parts
        first = known["gen_ai.latency.time_to_first_token"]
        assert 0 < first < _seconds(root) == pytest.approx(known["gen_ai.latency.e2e"], abs=1e-6)
        assert 0 < sum(map(_seconds, until_first)) <= first + 1e-6
        at_first = (decode.start_time_unix_nano - root.start_time_unix_nano) / 1e9
        assert at_first == pytest.approx(first, abs=1e-6)
        assert 0 < _seconds(decode) <= _seconds(root) - first + 1e-6
