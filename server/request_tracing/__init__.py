"""OpenTelemetry: a trace's spans for each request, sent to a collector."""
