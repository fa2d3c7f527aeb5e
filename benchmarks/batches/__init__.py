"""Batches on an engine without HTTP: files of requests, and online traffic beside them."""
