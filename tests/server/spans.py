"""The spans that a canned server has been sent as a collector of OpenTelemetry."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.server.canned_server import CannedServer


def requests_to(collector: CannedServer) -> list[ExportTraceServiceRequest]:
    return [ExportTraceServiceRequest.FromString(body) for body in collector.requests]


def spans(collector: CannedServer) -> list[Span]:
    """All that have come so far."""
    resources = [each for request in requests_to(collector) for each in request.resource_spans]
    return [span for each in resources for scope in each.scope_spans for span in scope.spans]


def values(span: Span) -> dict[str, Any]:
    """Its attributes."""
    return {
        attribute.key: getattr(attribute.value, str(attribute.value.WhichOneof("value")))
        for attribute in span.attributes
    }
