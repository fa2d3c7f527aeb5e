"""The ASGI application: request id, API key, metrics, the endpoint's handler, and an answer if the
handler breaks.

What is checked here is the API key (401); too much load (429) is refused by the handlers, by the
`ledger` and their engines.

Handlers are looked up and called here: a framework's middleware, routing and dependencies took a
third of the time from a request to its job.
"""

import re
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.errors import ERRORS, INTERNAL
from server.http.disconnect import ClientLeftError
from server.http.error_answer import ErrorAnswer, note_error
from server.http.route_table import Handler, RouteTable
from server.metrics.request_record import CLIENT_LEFT, RequestRecord
from server.service.service import Service

_UNSAFE = re.compile(rb"[^A-Za-z0-9._:/+=-]+")
_MAX_REQUEST_ID = 128


class Gate:
    """The whole ASGI application."""

    def __init__(self, service: Service, table: RouteTable, others: ASGIApp) -> None:
        """`others` answers paths that are not in `table`."""
        self._service = service
        self._table = table
        self._others = others
        self._tracer = service.tracer
        self._open = {
            endpoint.handler
            for endpoint in service.registry.endpoints
            if not endpoint.requires_key(service.config)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._request_id(headers)
        record = RequestRecord(request_id=request_id.decode(), started=started)
        scope["service"], scope["record"] = self._service, record
        complete = False
        handler = None

        async def send_with_id(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *_own_headers(record)]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            handler = self._table.find(scope)
            if handler in self._open or self._has_key(headers, record):
                await self._answer(handler, scope, receive, send_with_id)
            else:
                await _UNAUTHORIZED(scope, receive, send_with_id)
        except ClientLeftError:
            pass  # nobody reads an answer
        except Exception as error:
            if record.status == CLIENT_LEFT:
                await ErrorAnswer(INTERNAL, cause=error)(scope, receive, send_with_id)
            elif not complete:
                note_error(scope, INTERNAL, error)
                raise  # the status is out: the HTTP server cuts the connection
        finally:
            if not complete:
                _note_unanswered(scope, record)
            record.endpoint = self._table.endpoint(scope)
            self._service.note(scope, record)
            self._trace(scope, record, handler)

    async def _answer(
        self, handler: Handler | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if handler is None:
            methods = self._table.methods(scope)
            others = _method_not_allowed(methods) if methods else self._others
            await others(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except RefusalError as error:
            response = ErrorAnswer(error)
        await response(scope, receive, send)

    def _has_key(self, headers: dict[bytes, bytes], record: RequestRecord) -> bool:
        """Whether the request has a key; notes whose it is."""
        client = self._service.keys.find(headers.get(b"authorization", b""))
        if client is not None:
            record.client = client
        return client is not None

    def _trace(self, scope: Scope, record: RequestRecord, handler: Handler | None) -> None:
        if self._tracer is not None and handler not in self._open and not record.is_probe:
            self._tracer.add(scope, record)

    def _request_id(self, headers: dict[bytes, bytes]) -> bytes:
        """The client's own id, harmless characters only, or a fresh one."""
        named = headers.get(b"x-request-id")
        safe = _UNSAFE.sub(b"", named)[:_MAX_REQUEST_ID] if named is not None else b""
        return safe or self._service.new_id("req").encode()


def _own_headers(record: RequestRecord) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", record.request_id.encode())]
    if record.ignored:
        headers.append((b"x-penstock-ignored", ",".join(record.ignored).encode()))
    return headers


def _note_unanswered(scope: Scope, record: RequestRecord) -> None:
    """The answer has not been sent whole: by an error on our side, because the rest of the request
    could not be read (the HTTP server has then answered), or because the client left."""
    unreadable: RefusalError | None = scope.get("unreadable")
    if unreadable is not None:
        record.status, record.error = ERRORS[unreadable.code].status, unreadable.code
    elif record.error is None:
        record.status = CLIENT_LEFT


def _method_not_allowed(methods: set[str]) -> ErrorAnswer:
    allowed = ", ".join(sorted(methods))
    message = f"this path is for {allowed}"
    return ErrorAnswer(RefusalError("method_not_allowed", message), headers={"allow": allowed})


_UNAUTHORIZED = ErrorAnswer(
    RefusalError("invalid_api_key", "this server needs an API key: `Authorization: Bearer KEY`")
)
