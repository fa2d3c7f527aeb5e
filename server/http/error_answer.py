"""The answer to a request that failed, and the log's line where the failure is the server's own."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.errors import ERRORS, error_body, error_headers
from server.http.incoming import has_come
from server.metrics.request_record import RequestRecord

_OF_BODIES = frozenset(
    {"body_timeout", "body_too_large", "overloaded", "quota_exceeded", "too_large"}
)
"""Where these are refused while the body is on its way, the rest of it is not read."""

_log = logging.getLogger(__name__)


class ErrorAnswer(Response):
    """The answer to `error`; `status` and `body` override those of OpenAI's API.

    A failure of the server's own (500) is logged when it is sent, with its `cause`.
    """

    def __init__(
        self,
        error: RefusalError,
        *,
        status: int | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        cause: Exception | None = None,
    ) -> None:
        super().__init__(
            error_body(error) if body is None else body,
            status_code=ERRORS[error.code].status if status is None else status,
            headers={**error_headers(error), **(headers or {})},
            media_type="application/json",
        )
        self._error = error.copy()  # the collector comes after hundreds of requests
        self._cause = cause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note it, and send it."""
        note_error(scope, self._error, self._cause)
        if self._error.code in _OF_BODIES and not has_come(scope):
            self.headers["connection"] = "close"
        await super().__call__(scope, receive, send)


def note_error(scope: Scope, error: RefusalError, cause: Exception | None = None) -> None:
    """Write `error` into the request's record. If it is the server's own failure, the log gets one
    line that names the request and the reason; the traceback of `cause`, if any, follows."""
    record: RequestRecord = scope["record"]
    record.error = error.code
    if ERRORS[error.code].status != HTTPStatus.INTERNAL_SERVER_ERROR:
        return
    _log.error(
        "request %s failed: %s %s: %s: %s",
        record.request_id,
        scope["method"],
        scope["path"],
        error.code,
        error.message if cause is None else repr(cause),
        exc_info=cause,
    )
