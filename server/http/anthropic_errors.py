"""Errors in the shape of Anthropic's API, and which clients get them."""

from typing import Any, Literal

import msgspec
from starlette.types import Scope

from engine_core.refusal import RefusalError
from server.errors import ERRORS
from server.observe.request_record import RequestRecord

AnthropicErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "overloaded_error",
    "api_error",
]
_TYPES: dict[int, AnthropicErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Its clients, told so, go on without a thread.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    type: AnthropicErrorType
    """The kind of error, in Anthropic's words."""
    message: str
    """The fault, in a sentence."""
    details: dict[str, Any]
    """`error_code`, one of a fixed list, and `param`, the field of the request that is at fault, or
    null."""


class AnthropicErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer that is not a success, and of the event at which a stream fails."""

    type: Literal["error"] = "error"
    """Always `error`."""
    error: AnthropicError
    """The fault."""
    request_id: str
    """The request's id, as in `x-request-id`."""


def is_anthropics(scope: Scope) -> bool:
    """Whether a request is to its endpoints, or of its clients, which name the API's version."""
    return scope["path"].startswith("/v1/messages") or any(
        name == b"anthropic-version" for name, _ in scope["headers"]
    )


def anthropic_error(error: RefusalError, scope: Scope) -> bytes:
    """The body for `error`."""
    record: RequestRecord = scope["record"]
    status = ERRORS[error.code].status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details: dict[str, Any] = {"error_code": error.code, "param": error.param}
    if error.param == "thread":
        details = _NO_THREADS
    fault = AnthropicError(type=kind, message=error.message, details=details)
    return msgspec.json.encode(AnthropicErrorBody(error=fault, request_id=record.request_id))
