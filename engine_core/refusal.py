"""The error of a request, from where it arises, in the engine or the server, to the answer."""

from dataclasses import dataclass, replace
from typing import Literal, Self

ErrorCode = Literal[
    "invalid_request",
    "context_length_exceeded",
    "too_large",
    "wrong_endpoint",
    "model_required",
    "previous_response_not_found",
    "websocket_connection_limit_reached",
    "invalid_api_key",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "gone",
    "body_too_large",
    "unsupported_encoding",
    "unsupported_transfer",
    "overloaded",
    "head_too_large",
    "row_failed",
    "engine_dead",
    "template_unavailable",
    "internal_error",
    "storage_full",
    "state_unavailable",
    "quota_exceeded",
    "not_ready",
    "unhealthy",
    "draining",
    "request_timeout",
]


@dataclass(eq=False)
class RefusalError(Exception):
    """Refusal, or failure, of a request or a job.

    `param` names the field at fault; `retry_after` is the expected wait in seconds, if it is known.
    """

    code: ErrorCode
    message: str
    param: str | None = None
    retry_after: float | None = None

    def __str__(self) -> str:
        return self.message

    def copy(self) -> Self:
        """Return a copy that leads to no frames, to keep, or to raise in place of one that is kept.

        A raised error leads to the frames on its way. If one of these keeps it, that is a cycle,
        and all that they hold waits for the garbage collector."""
        return replace(self)
