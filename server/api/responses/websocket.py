"""`/v1/responses` by WebSocket: each message is a request, whose events are sent as they are.

A message passes the gate as a POST with the headers of the handshake, so that keys, limits, metrics
and the log treat it as one. One response is computed at a time; messages that come meanwhile wait.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import Request, Response
from msgspec import Raw
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.api.responses.responses import create_response
from server.errors import ERRORS, error_body, error_headers
from server.http.answers import ErrorAnswer
from server.http.body import text_in
from server.observe.request_record import RequestRecord
from server.schemas.common import invalid
from server.service.endpoint import Endpoint, Operation
from server.service.service import Service, record_of, service_of
from server.settings.api_keys import ANYBODY

SOCKET_PATH: Final = "/v1/responses"

_LIFETIME_S = 3600.0
_MOST_WAITING = 8
_POLICY, _TOO_BIG = 1008, 1009
"""The codes of a close where a client has met a rule of the server's, or that of a message's size,
by which the protocol has closed already."""
_SOCKET, _NO_SOCKET = {"description": "A WebSocket"}, {"description": "A GET that opens none"}
_OF_HANDSHAKE = frozenset({b"anthropic-version", b"content-encoding", b"x-request-id"})
"""Headers that would say something else of a message."""
_OF_ERRORS = frozenset({b"retry-after", b"x-request-id"})
_ENDS = frozenset({b"event: response.completed", b"event: response.incomplete"})
_TOO_MANY = f"more than {_MOST_WAITING} messages wait: send one when the last is answered"
_TOO_LONG = f"a connection lasts for {_LIFETIME_S / 60:.0f} minutes: open another"

_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


class _Response(msgspec.Struct, frozen=True):
    id: str
    store: bool
    output: list[Raw]


class _Ended(msgspec.Struct, frozen=True):
    """The last event of a response."""

    response: _Response


@answers(
    Endpoint("GET", SOCKET_PATH, "OpenAI", variant_of=create_response, order=22),
    Operation(arguments={"responses": {101: _SOCKET, 405: _NO_SOCKET}}),
)
async def open_socket(request: Request) -> Response:
    """Open a WebSocket, each of whose `response.create` messages is answered by its events."""
    if "socket" not in request.scope:
        message = "this path is for POST, and for a GET that opens a WebSocket"
        return ErrorAnswer(RefusalError("method_not_allowed", message), headers={"allow": "POST"})
    origin = request.headers.get("origin")
    allowed = {None, *service_of(request).config.cors_origins}
    # Any page may open a WebSocket and read it. Only a key is out of its reach.
    if record_of(request).client is ANYBODY and not {origin, "*"} & allowed:
        raise RefusalError("invalid_request", f"pages of {origin} may not call (--cors-origin)")
    return Response(status_code=HTTPStatus.SWITCHING_PROTOCOLS)


class ResponseSocket:
    """The ASGI application of the path's WebSockets."""

    def __init__(self, service: Service, gate: ASGIApp) -> None:
        self._service, self._gate = service, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the handshake itself
        handshake: Scope = {**scope, "type": "http", "method": "GET", "socket": True}
        accepted = False

        async def answer(message: Message) -> None:
            nonlocal accepted
            if message.get("status") == HTTPStatus.SWITCHING_PROTOCOLS:
                accepted = True
                await send({"type": "websocket.accept", "headers": message["headers"]})
            elif not accepted:
                await send({**message, "type": f"websocket.{message['type']}"})

        await self._gate(handshake, receive, answer)
        if accepted:
            record: RequestRecord = handshake["record"]
            key = record.client.share.number
            await _Connection(self._service, self._gate, scope, receive, send).serve(key)


class _Connection:
    """An open WebSocket, and the conversation up to its last response if that is not stored."""

    def __init__(
        self, service: Service, gate: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._service, self._gate = service, gate
        self._scope, self._receive, self._send = scope, receive, send
        headers = [header for header in scope["headers"] if header[0] not in _OF_HANDSHAKE]
        self._post = {**scope, "type": "http", "method": "POST", "headers": headers}
        self._recent: dict[str | None, tuple[bytes, str | None]] = {}
        """Its items and the stored response before them, by its id."""
        self._waiting: deque[Message] = deque()
        self._coming = 0

    async def serve(self, key: int) -> None:
        """Answer messages of the client of an API key until either side ends it."""
        self._account = self._service.ledger.account(key, "the messages of this connection")
        try:
            with self._account:
                self._scope["note_coming"] = self._note_coming
                try:
                    await self._answer_all()
                finally:
                    del self._scope["note_coming"]
        except RefusalError as error:
            await self._send_error(ERRORS[error.code].status, error_body(error), ())
        await self._send({"type": "websocket.close", "code": _POLICY})

    async def _answer_all(self) -> None:
        """Raises RefusalError where the client has met a limit of connections."""
        deadline = asyncio.get_running_loop().time() + _LIFETIME_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    message = self._waiting.popleft() if self._waiting else await self._receive()
            except TimeoutError:
                raise RefusalError("websocket_connection_limit_reached", _TOO_LONG) from None
            if message["type"] == "websocket.disconnect":
                if message["code"] == _TOO_BIG:
                    error = RefusalError("body_too_large", "a message is larger than a body may be")
                    self._service.note_unread(self._post, error)
                return
            await self._answer(message)
            await asyncio.sleep(0)  # a refusal waits for nothing
            if len(self._waiting) > _MOST_WAITING:
                raise RefusalError("overloaded", _TOO_MANY)

    async def _answer(self, message: Message) -> None:
        """Answer one message by its events, or by an error."""
        request = {**self._post, "state": {"body_has_come": True}, "recent": self._recent}
        try:
            fields = _fields_of(message)
        except RefusalError as error:
            request_id = self._service.note_unread(request, error)
            headers = {**error_headers(error), "x-request-id": request_id.decode()}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send_error(ERRORS[error.code].status, error_body(error), raw)
            return
        body = [_encode(fields)]
        head: Message = {}
        has_ended = False

        async def receive() -> Message:
            return {"type": "http.request", "body": body.pop()} if body else await self._left()

        async def send(message: Message) -> None:
            nonlocal head, has_ended
            if message["type"] == "http.response.start":
                head, self._scope["record"] = message, request["record"]
            elif head["status"] != HTTPStatus.OK:
                await self._send_error(head["status"], message["body"], head["headers"])
            else:
                for event in message["body"].split(b"\n\n"):
                    name, _, data = event.partition(b"\ndata: ")
                    if name in _ENDS:
                        self._remember(fields, data)
                        has_ended = True
                    # An error comes before `response.failed`, which has it, too.
                    if data and name != b"event: error":
                        await self._send({"type": "websocket.send", "text": data.decode()})

        await self._gate(request, receive, send)
        if not has_ended:
            self._recent.pop(text_in(fields, "previous_response_id"), None)
        self._hold()

    async def _left(self) -> Message:
        """Wait until the client has left, or sends more than may wait."""
        while len(self._waiting) <= _MOST_WAITING and not (
            self._waiting and self._waiting[-1]["type"] == "websocket.disconnect"
        ):
            self._waiting.append(await self._receive())
            self._hold()
        return {"type": "http.disconnect"}

    def _remember(self, fields: dict[str, Raw], last_event: bytes) -> None:
        """Keep the conversation up to a response, unless it is stored, in place of the last."""
        response = msgspec.json.decode(last_event, type=_Ended).response
        previous = text_in(fields, "previous_response_id")
        before, stored = self._recent.pop(previous, (b"[]", previous))
        self._recent.clear()
        if not response.store:
            text, given = text_in(fields, "input"), fields["input"]
            if text is not None:
                given = _encode([{"role": "user", "content": text}])
            lists = [msgspec.json.decode(part, type=list[Raw]) for part in (before, given)]
            items = _encode([*lists[0], *lists[1], *response.output])
            self._recent[response.id] = items, stored

    async def _send_error(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Send an error, as the protocol has it, from the body of an answer."""
        error: dict[str, Any] = msgspec.json.decode(body)["error"]
        error["headers"] = {
            name.decode(): value.decode() for name, value in headers if name in _OF_ERRORS
        }
        event = _encode({"type": "error", "status": status, "error": error})
        await self._send({"type": "websocket.send", "text": event.decode()})

    def _note_coming(self, num_bytes: int) -> None:
        """Called with the bytes that have come of a message."""
        self._coming = num_bytes
        self._hold()

    def _hold(self) -> None:
        waiting = sum(len(each.get("text") or each.get("bytes") or "") for each in self._waiting)
        recent = sum(len(items) for items, _ in self._recent.values())
        self._account.hold(self._coming + waiting + recent)


def _fields_of(message: Message) -> dict[str, Raw]:
    """The body of the request that a message is. Raises RefusalError."""
    text: str | None = message.get("text")
    if text is None:
        raise RefusalError("invalid_request", "the message is binary: send JSON as text")
    try:
        fields = _fields.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise RefusalError("invalid_request", "the message is not a JSON object") from None
    if text_in(fields, "type") != "response.create":
        raise invalid("type", "only 'response.create' is served")
    for name, neutral in (("generate", b"true"), ("stream_id", b"null")):
        if fields.pop(name, Raw(b"null")) not in (Raw(b"null"), Raw(neutral)):
            raise invalid(name, "is known but not served here: leave it out")
    del fields["type"]
    return {**fields, "stream": Raw(b"true")}
