"""The record of one HTTP request, which metrics, the access log and traces read at its end."""

import time
from collections.abc import Callable
from typing import Final, Literal, get_args

import msgspec

from engine_core.messages import JobTiming
from engine_core.refusal import ErrorCode
from server.schemas.common import FinishReason
from server.settings.api_keys import ANYBODY, ClientKey

CLIENT_LEFT: Final = 499
"""The status of a request whose client left before its answer."""

MOST_OF_PATH: Final = 1024
"""Characters of a request's path that its log line and its span repeat."""

RowEnd = FinishReason | Literal["abort", "error"]

ROW_ENDS: tuple[str, ...] = (*get_args(FinishReason), "abort", "error")
"""How a row may end: as the API says, because its client left, or because the request failed."""


class RequestRecord(msgspec.Struct, kw_only=True):
    """Times are in seconds. None: the request did not come so far.

    started        when its headers were there (time.perf_counter).
    begun          when its body was there, too, and its model was found.
    endpoint       its path, parameters written `{name}`; "other" for a path that is not served.
    error          why it was refused, or failed; a stream may fail after its status was sent.
    is_probe       it asks how the daemon is: what that answers refuses nothing, and is not traced.
    jobs           of its engine, as far as they have been told the time.
    ended_rows     how many of them ended, and how.
    held_bytes     about how much of the answer waits for its client to read what comes before.
    ignored        paths in its schema that its answer does not follow.
    cached_tokens  of the prompt tokens, those found in the prefix cache.
    tokenize_s     until its texts were tokenized and its grammar was compiled, in the engine.
    queue_s        until a step began to compute it.
    prefill_s      until its first token, or the end of its last text.
    decode_s       from its first token to its last.
    first_token_s  from `started` to the first token.
    encoded_s      from `started` until its last text was computed.
    total_s        from `started` to the end of its answer.

    The times of a request with several jobs are sums.
    """

    request_id: str
    started: float
    begun: float | None = None
    endpoint: str = "other"
    client: ClientKey = ANYBODY
    model: str | None = None
    status: int = CLIENT_LEFT
    error: ErrorCode | None = None
    is_probe: bool = False
    held_bytes: Callable[[], int] | None = None
    ignored: tuple[str, ...] = ()
    jobs: int = 0
    rows: int = 0
    ended_rows: dict[RowEnd, int] = {}
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tokenize_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    first_token_s: float | None = None
    encoded_s: float | None = None
    total_s: float = 0.0

    def add_timing(self, timing: JobTiming) -> None:
        self.jobs += 1
        self.tokenize_s = (self.tokenize_s or 0.0) + timing.tokenize
        self.queue_s = (self.queue_s or 0.0) + timing.queue
        self.prefill_s = (self.prefill_s or 0.0) + timing.prefill

    def end_rows(self, end: RowEnd, rows: int = 1) -> None:
        self.ended_rows[end] = self.ended_rows.get(end, 0) + rows

    def close(self) -> None:
        """The request is over: what has not ended by now never will."""
        self.total_s = time.perf_counter() - self.started
        if open_rows := self.rows - sum(self.ended_rows.values()):
            self.end_rows("abort" if self.error is None else "error", open_rows)
