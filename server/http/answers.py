"""The answer to a request that failed, and answers of server-sent events."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Self

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.errors import ERRORS, INTERNAL, error_body, error_headers
from server.http.anthropic_errors import anthropic_error, is_anthropics
from server.http.body import CancelOnDisconnect, ClientLeftError, has_come
from server.observe.request_record import RequestRecord

_OF_BODIES = frozenset(
    {"body_timeout", "body_too_large", "overloaded", "quota_exceeded", "too_large"}
)
"""Where these are refused while the body is on its way, the rest of it is not read."""

_LENGTH = "content-length"

_log = logging.getLogger(__name__)


class ErrorAnswer(Response):
    """The answer to `error`. `status` and `body` override those of OpenAI's API, which Anthropic's
    clients get in its shape. A failure of the server's own (500) is logged when it is sent, with
    its `cause`."""

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
        self._cause, self._has_body = cause, body is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_error(scope, self._error, self._cause)
        if self._error.code in _OF_BODIES and not has_come(scope):
            self.headers["connection"] = "close"
        if self._has_body or not is_anthropics(scope):
            await super().__call__(scope, receive, send)
            return
        headers = {name: text for name, text in self.headers.items() if name != _LENGTH}
        answer = Response(anthropic_error(self._error, scope), self.status_code, headers)
        await answer(scope, receive, send)


def note_error(scope: Scope, error: RefusalError, cause: Exception | None = None) -> None:
    """Write `error` into the request's record. The server's own failure is logged, with the
    traceback of `cause`, if any."""
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


DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


def error_event(error: RefusalError, scope: Scope) -> bytes:
    if is_anthropics(scope):
        return named_event("error", anthropic_error(error, scope))
    return event(error_body(error))


Failure = Callable[[RefusalError, Scope], bytes]
"""Makes the last events of a stream that fails."""


class EventStream(Response):
    """The answer 200 with a body of events, the last of which tell of an error on the way.

    Each item of `events` is written at once: one or more whole events. The last event is `last`.
    `events` is closed whatever happens: a client that leaves cancels it where it waits.
    """

    def __init__(self, events: AsyncGenerator[bytes], last: bytes, failure: Failure) -> None:
        """`failure` makes the last events after an error."""
        super().__init__(
            headers={"cache-control": "no-cache"}, media_type="text/event-stream; charset=utf-8"
        )
        del self.headers[_LENGTH]
        self._events, self._end, self._failure = events, last, failure

    @classmethod
    async def begin(cls, events: AsyncGenerator[bytes], last: bytes, failure: Failure) -> Self:
        """Run `events` up to its first item, which is not sent. Until then a failure can still be
        answered with a status of its own. Raises whatever `events` raises."""
        await anext(events)
        return cls(events, last, failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            with suppress(ClientLeftError), CancelOnDisconnect(receive):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                try:
                    async for data in events:
                        await send(_body(data, more=not data.endswith(self._end)))
                except RefusalError as error:
                    await send(self._failed(scope, error))
                except Exception as error:
                    await send(self._failed(scope, INTERNAL, error))

    def _failed(self, scope: Scope, error: RefusalError, cause: Exception | None = None) -> Message:
        note_error(scope, error, cause)
        return _body(self._failure(error, scope), more=False)


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
