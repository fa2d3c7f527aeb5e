"""Bytes that cannot be read as a request: they get the last answer of their connection."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from engine_core.refusal import RefusalError
from server.http.error_answer import ErrorAnswer
from server.metrics.request_record import RequestRecord

NoteUnread = Callable[[Scope, RefusalError], bytes]
"""Takes what is known of a request, and its answer; returns the request's id."""

# A socket that is closed with bytes unread is reset, and the client may lose the answer.
_LINGER_S = 2


def answer_and_close(
    connection: HttpToolsProtocol, error: RefusalError, note_unread: NoteUnread
) -> None:
    """Answer with `error`, after the answers to earlier requests, and close.

    The caller drops everything received from now on.
    """
    last = cast("RequestResponseCycle | None", connection.cycle)
    known = _scope_of_unread(connection, last)

    def end() -> None:
        """Answer a request of which the application will not hear."""
        _answer_last(connection, error, note_unread(known, error))

    if last is None or last.response_complete:
        end()
    elif not last.more_body:
        last.on_response = end
    else:  # the bytes at fault are in the last request's body
        last.disconnected = True
        if connection.pipeline:
            connection.pipeline[0] = (last, _app(end))
        elif last.response_started:
            connection.transport.close()
        else:
            scope = cast("Scope", last.scope)
            scope["unreadable"] = error
            last.message_event.set()
            record: RequestRecord | None = scope.get("record")
            _answer_last(connection, error, b"" if record is None else record.request_id.encode())


def _app(end: Callable[[], None]) -> ASGI3Application:
    async def app(*_: Any) -> None:
        end()

    return app


def _scope_of_unread(connection: HttpToolsProtocol, last: RequestResponseCycle | None) -> Scope:
    """What is known of the request that cannot be read: perhaps only who sent it."""
    known: Scope = {"client": connection.client}
    scope = cast("Scope | None", connection.scope)
    begun = scope is not None and (last is None or scope is not last.scope or last.more_body)
    if begun and connection.url:
        parser = cast("httptools.HttpRequestParser", connection.parser)
        known["method"] = parser.get_method().decode()
        with suppress(httptools.HttpParserInvalidURLError):
            known["raw_path"] = httptools.parse_url(connection.url).path
    return known


def _answer_last(connection: HttpToolsProtocol, error: RefusalError, request_id: bytes) -> None:
    """`request_id` is empty while the application has not given it one."""
    transport = connection.transport
    if transport.is_closing():
        return
    transport.write(_answer(connection, error, request_id))
    if transport.can_write_eof():
        transport.write_eof()
        connection.loop.call_later(_LINGER_S, transport.close)
    else:  # TLS
        transport.close()


def _answer(connection: HttpToolsProtocol, error: RefusalError, request_id: bytes) -> bytes:
    answer = ErrorAnswer(error)
    named = [(b"x-request-id", request_id)] if request_id else []
    headers = [
        *connection.server_state.default_headers,
        *answer.raw_headers,
        *named,
        (b"connection", b"close"),
    ]
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", answer.body])
