"""`system_fingerprint`: by what a client notices that a model is computed in another way."""

import hashlib

import msgspec

from server import __version__
from workers.contract.config import ExecutionConfig

_DIGITS = 10


def system_fingerprint(execution: ExecutionConfig) -> str:
    """The same for the same release, model, devices and settings; not of one start alone."""
    lasting = msgspec.structs.replace(
        execution,
        worker_endpoint="",
        token_endpoint="",
        rendezvous="",
        # What is free when the daemon starts.
        kv_cache_bytes=0,
        memory_shares=(),
        # What changes no text.
        log_level="",
        setting_names={},
    )
    text = __version__.encode() + msgspec.json.encode(lasting, order="sorted")
    return f"fp_{hashlib.sha256(text).hexdigest()[:_DIGITS]}"
