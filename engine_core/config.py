"""The frozen configuration of one engine core, written by the supervisor as JSON."""

import msgspec

from workers.contract.config import ExecutionConfig


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One served model: how it is computed, and how much of it may be in flight.

    `max_pending_*` bound what is accepted and not finished: rows, and tokens (text counts its bytes
    until it is tokenized). `max_queue_seconds` bounds the expected wait until a job's first row
    begins; 0 is no bound. A worker stands still if a step takes longer than `stall_timeout`
    seconds; with 0 the workers are not watched. If they are lost, somebody starts them again, as
    often as a `RestartLimit` of `max_restarts` allows; they are lost, too, if that takes longer
    than `startup_timeout` seconds (0: however long). `client_endpoint` is the socket for API
    processes.
    """

    execution: ExecutionConfig
    max_pending_rows: int
    max_pending_tokens: int
    max_queue_seconds: float = 30.0
    client_endpoint: str
    stall_timeout: float = 60.0
    max_restarts: int = 0
    startup_timeout: float = 0.0
