"""Bytes that cannot be read as a request: they get the last answer of their connection."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from server.access_log.access_log import STATE as ACCESS_LOG
from server.access_log.access_log import AccessLog
from server.errors import APIError
from server.http.error_answer import ErrorAnswer

# A socket that is closed with bytes unread is reset, and the client may lose the answer.
_LINGER_S = 2


def answer_and_close(connection: HttpToolsProtocol, error: APIError) -> None:
    """Answer with `error`, after the answers to earlier requests, and close.

    The caller drops everything received from now on.
    """
    last = cast("RequestResponseCycle | None", connection.cycle)
    end = partial(_end, connection, error, _scope_of_unread(connection, last))
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
            cast("Scope", last.scope)["unreadable"] = error
            last.message_event.set()
            _answer_last(connection, error)


def _app(end: Callable[[], None]) -> ASGI3Application:
    async def app(*_: Any) -> None:
        end()

    return app


def _scope_of_unread(connection: HttpToolsProtocol, last: RequestResponseCycle | None) -> Scope:
    """What is known of the request that cannot be read: perhaps only who sent it."""
    scope = cast("Scope | None", connection.scope)
    begun = scope is not None and (last is None or scope is not last.scope or last.more_body)
    return scope if scope is not None and begun else {"client": connection.client}


def _end(connection: HttpToolsProtocol, error: APIError, scope: Scope) -> None:
    """The application will not hear of the request."""
    access_log: AccessLog | None = connection.app_state.get(ACCESS_LOG)
    if access_log is not None:
        access_log.add_unread(scope, error)
    _answer_last(connection, error)


def _answer_last(connection: HttpToolsProtocol, error: APIError) -> None:
    transport = connection.transport
    if transport.is_closing():
        return
    transport.write(_answer(connection, error))
    if transport.can_write_eof():
        transport.write_eof()
        connection.loop.call_later(_LINGER_S, transport.close)
    else:  # TLS
        transport.close()


def _answer(connection: HttpToolsProtocol, error: APIError) -> bytes:
    answer = ErrorAnswer(error)
    headers = [
        *connection.server_state.default_headers,
        *answer.raw_headers,
        (b"connection", b"close"),
    ]
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", error.body()])
