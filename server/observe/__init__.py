"""Observation of requests and engines: records, metrics, the access log, traces."""
