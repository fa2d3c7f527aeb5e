"""Errors of TEI's endpoints: its body, its statuses."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec

import msgspec
from fastapi import Response

from engine_core.refusal import ErrorCode, RefusalError
from server.http.answers import ErrorAnswer
from server.schemas.tei import TEIError, TEIErrorType

P = ParamSpec("P")

_KINDS: Mapping[ErrorCode, tuple[int, TEIErrorType]] = {
    "invalid_request": (422, "Validation"),
    "model_not_found": (422, "Validation"),
    "context_length_exceeded": (413, "Validation"),
    "too_large": (413, "Validation"),
    "body_too_large": (413, "Validation"),
    "unsupported_encoding": (415, "Validation"),
    "overloaded": (429, "Overloaded"),
    "not_ready": (503, "Unhealthy"),
    "unhealthy": (503, "Unhealthy"),
    "draining": (503, "Unhealthy"),
}
_BACKEND: tuple[int, TEIErrorType] = (424, "Backend")
STATUSES = sorted({400, _BACKEND[0], *(status for status, _ in _KINDS.values())})


class EmptyBatchError(RefusalError):
    """A request with nothing in it."""


def empty_batch(field: str) -> EmptyBatchError:
    """The refusal of a request whose `field` is empty."""
    return EmptyBatchError("invalid_request", f"`{field}` cannot be empty", field)


def tei_errors(handler: Callable[P, Awaitable[Response]]) -> Callable[P, Awaitable[Response]]:
    """`handler` with TEI's answers to errors."""

    @functools.wraps(handler)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await handler(*args, **kwargs)
        except RefusalError as error:
            return _answer(error)

    return answer


def _answer(error: RefusalError) -> Response:
    """TEI's answer to `error`."""
    if isinstance(error, EmptyBatchError):
        status, kind = 400, "Empty"
    else:
        status, kind = _KINDS.get(error.code, _BACKEND)
    body = msgspec.json.encode(TEIError(error.message, kind))
    return ErrorAnswer(error, status=status, body=body)
