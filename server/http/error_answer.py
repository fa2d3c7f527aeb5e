"""The answer to a request that failed, and the log's line where the failure is the server's own."""

import logging
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_core.job import without_frames
from server.errors import APIError
from server.metrics.request_record import RequestRecord

_log = logging.getLogger(__name__)


class ErrorAnswer(Response):
    """The answer to `error`; `status` and `body` override those of OpenAI's API.

    A failure of the server's own (500) is logged when it is sent.
    """

    def __init__(
        self, error: APIError, *, status: int | None = None, body: bytes | None = None
    ) -> None:
        super().__init__(
            error.body() if body is None else body,
            status_code=error.status if status is None else status,
            headers=error.headers,
            media_type="application/json",
        )
        self._error = without_frames(error)  # the collector comes after hundreds of requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note it, and send it."""
        note_error(scope, self._error)
        await super().__call__(scope, receive, send)


def note_error(scope: Scope, error: APIError) -> None:
    """Write `error` into the request's record. If it is the server's own failure, the log gets one
    line that names the request and the reason; the traceback of the exception that it was raised
    from, if any, follows."""
    record: RequestRecord = scope["record"]
    record.error = error.code
    if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
        return
    cause = error.__cause__
    _log.error(
        "request %s failed: %s %s: %s: %s",
        record.request_id,
        scope["method"],
        scope["path"],
        error.code,
        error.message if cause is None else repr(cause),
        exc_info=cause,
    )
