"""Makes the spans of each request and hands them to OpenTelemetry's SDK (the extra `otel`), whose
thread sends them. No other file imports it."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from server import __version__
from server.observe.request_record import MOST_OF_PATH, RequestRecord
from server.observe.shared_cells import OTHER

AttributeValue = str | int | float


Phase = tuple[str, float, float]
"""A part of a request: its name, and seconds from the arrival of the request's headers to its begin
and end."""


def phases(record: RequestRecord) -> list[Phase]:
    """The engine's work for a request that is over: tokenize, queue, prefill, decode, as far as it
    came. None for several jobs, which run side by side. The engine tells durations, which are laid
    end to end, up to the first token, to the last text that was computed, or else to the answer."""
    if record.jobs != 1:
        return []
    moments = (record.first_token_s, record.encoded_s, record.total_s)
    first = next(moment for moment in moments if moment is not None)
    found: list[Phase] = []
    end = first
    durations = {
        "prefill": record.prefill_s,
        "queue": record.queue_s,
        "tokenize": record.tokenize_s,
    }
    for name, seconds in durations.items():
        begin = max(end - (seconds or 0.0), 0.0)
        found.insert(0, (name, begin, end))
        end = begin
    if record.decode_s is not None:
        found.append(("decode", first, min(first + record.decode_s, record.total_s)))
    return found


def failed(record: RequestRecord) -> bool:
    """Whether its span is an error: by the conventions, what a client did wrong is none."""
    return record.error is not None and not 400 <= record.status < 500


def attributes(record: RequestRecord, method: str, path: str) -> dict[str, AttributeValue]:
    """The attributes of a request's span, by OpenTelemetry's conventions for HTTP and generative
    AI. `gen_ai.request.id` and `gen_ai.latency.*` (seconds) are named as vLLM does."""
    found: dict[str, AttributeValue | None] = {
        "http.request.method": method,
        "http.route": None if record.endpoint == OTHER else record.endpoint,
        "url.path": path[:MOST_OF_PATH],
        "http.response.status_code": record.status,
        "error.type": record.error,
        "gen_ai.request.id": record.request_id,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens or None,
        "gen_ai.usage.output_tokens": record.output_tokens or None,
        "gen_ai.latency.time_in_queue": record.queue_s,
        "gen_ai.latency.time_to_first_token": record.first_token_s,
        "gen_ai.latency.time_in_model_prefill": record.prefill_s,
        "gen_ai.latency.time_in_model_decode": record.decode_s,
        "gen_ai.latency.e2e": record.total_s,
    }
    return {name: value for name, value in found.items() if value is not None}


_logger = logging.getLogger(__name__)

_EXPORT_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_NANOSECONDS = 1_000_000_000
_PARENT: Final = ("traceparent", "tracestate")


class RequestTracer:
    """A span for each request, with one for each part of the engine's work in it.

    A `traceparent` (W3C Trace Context) is continued, if its caller samples it. The SDK reads its
    own variables of the environment. At most 2,048 spans wait for the collector; beyond, the oldest
    are dropped.
    """

    def __init__(self, endpoint: str) -> None:
        own = {SERVICE_NAME: "penstock", SERVICE_VERSION: __version__}
        asked = OTELResourceDetector().detect().attributes
        self._provider = TracerProvider(
            resource=Resource.create({**own, **asked}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(endpoint)))
        self._tracer = self._provider.get_tracer("penstock", __version__)
        self._propagator = TraceContextTextMapPropagator()
        # It has said by now what is wrong with its variables, and would go on with each span that
        # it drops.
        logging.getLogger("opentelemetry.sdk").setLevel(logging.CRITICAL)

    def add(self, scope: Scope, record: RequestRecord) -> None:
        start = time.time_ns() - _nanoseconds(record.total_s)
        method, path = scope["method"], scope["path"]
        span = self._tracer.start_span(
            method if record.endpoint == OTHER else f"{method} {record.endpoint}",
            self._propagator.extract(_parent(scope)),
            SpanKind.SERVER,
            attributes(record, method, path),
            start_time=start,
        )
        if span.is_recording():
            if failed(record):
                span.set_status(StatusCode.ERROR, record.error)
            within = set_span_in_context(span)
            for name, begin, end in phases(record):
                part = self._tracer.start_span(name, within, start_time=start + _nanoseconds(begin))
                part.end(start + _nanoseconds(end))
        span.end(start + _nanoseconds(record.total_s))

    def close(self) -> None:
        """Send what waits, for a second at most."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _Exporter(OTLPSpanExporter):
    """Says when the collector goes away, and why, and when it is back."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, timeout=_EXPORT_SECONDS)
        self._url, self._away = endpoint, False
        self._complaint = _Complaint()
        # It would write a line for every attempt.
        exporter = logging.getLogger("opentelemetry.exporter")
        exporter.handlers, exporter.propagate = [self._complaint], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._complaint.text = ""
        result = super().export(spans)
        away = result is not SpanExportResult.SUCCESS
        if away and not self._away:
            why = self._complaint.text or "for no known reason"
            _logger.warning("no traces can be sent to %s, they are dropped: %s", self._url, why)
        elif self._away and not away:
            _logger.info("traces can be sent to %s again", self._url)
        self._away = away
        return result


class _Complaint(logging.Handler):
    """The first line that was logged since `text` was empty: later ones tell of further
    attempts."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or " ".join(record.getMessage().split())


def _parent(scope: Scope) -> dict[str, str]:
    """The headers that name the caller's span. Two parents are none. States are one list."""
    found = {
        name: [value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()]
        for name in _PARENT
    }
    if len(found["traceparent"]) != 1:
        return {}
    return {name: ",".join(values) for name, values in found.items() if values}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)
