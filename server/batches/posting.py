"""Requests of the HTTP API: tried again where the server is full, and how they fail."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from engine_core.refusal import RefusalError
from server.batches.results import JobStoppedError, RequestError
from server.errors import ERRORS, ErrorBody, ErrorDetail, error_body

_OK, _NO_ANSWER = 200, 500
_OF_ONE_REQUEST = frozenset(
    {
        "invalid_request",
        "context_length_exceeded",
        "too_large",
        "body_too_large",
        "row_failed",
        "request_timeout",
    }
)
NOT_OURS = "internal_error"
_WAIT = frozenset({"overloaded", "not_ready"})
_TOO_MANY = 429
_SECONDS = 1.0
MAX_ANSWER_BYTES = 256 << 20
"""Answers are taken whole: the longest."""


class Reply(NamedTuple):
    """An answer; `retry_after` in seconds, if the server said so."""

    status: int
    body: bytes
    retry_after: float | None
    request_id: str = ""


Exchange = Callable[[str, bytes], Awaitable[Reply]]
"""Posts a body of JSON to a path. The reply to a request for a longer answer than MAX_ANSWER_BYTES
is `too_long`."""


def too_long(size: int, request_id: str) -> Reply:
    """An error in place of an answer of `size` bytes."""
    message = (
        f"the answer has {size} bytes, of which a batch takes at most {MAX_ANSWER_BYTES}: ask for "
        "fewer choices of a prompt, or fewer log-probabilities"
    )
    error = RefusalError("too_large", message)
    return Reply(ERRORS[error.code].status, error_body(error), None, request_id)


def in_one_line(reply: Reply) -> Reply:
    """The reply with its JSON in one line. Other bodies, of a gateway, give way to an error of this
    API, so that files of results can have it."""
    try:
        return reply._replace(body=msgspec.json.format(reply.body, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        status = _NO_ANSWER if reply.status == _OK else reply.status
        error = _unknown(reply)
        body = msgspec.json.encode(ErrorBody(error, detail=error.message))
        return reply._replace(status=status, body=body)


async def post(exchange: Exchange, path: str, body: Mapping[str, object]) -> bytes:
    """The body of a 200; a server that is full, or still loads, is asked again.

    Raises RequestError for what is wrong with this request alone, else JobStoppedError.
    """
    try:
        data = msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise RequestError("invalid_request", f"not text: {error}") from None
    reply, error = await settled(exchange, path, data)
    if error is not None:
        raise failure(error.code, error.message, error.param)
    return reply.body


async def settled(exchange: Exchange, path: str, data: bytes) -> tuple[Reply, ErrorDetail | None]:
    """The answer, and its error unless it is a 200; a server that is full, or still loads, is asked
    again. What is no error of this API becomes one with the code NOT_OURS."""
    while True:
        reply = await exchange(path, data)
        if reply.status == _OK:
            return reply, None
        error = _error(reply)
        if error.code not in _WAIT and reply.status != _TOO_MANY:
            return reply, error
        await asyncio.sleep(reply.retry_after or _SECONDS)


def failure(code: str, message: str, param: str | None) -> RequestError | JobStoppedError:
    """That of one request, or else of every other one, too."""
    if code in _OF_ONE_REQUEST:
        return RequestError(code, message, param)
    return JobStoppedError(f"{message} ({code})")


def _error(reply: Reply) -> ErrorDetail:
    try:
        return msgspec.json.decode(reply.body, type=ErrorBody).error
    except msgspec.DecodeError:
        return _unknown(reply)


def _unknown(reply: Reply) -> ErrorDetail:
    text = reply.body[:200].decode(errors="replace")
    return ErrorDetail(f"status {reply.status}: {text}", "", None, NOT_OURS)
