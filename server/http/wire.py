"""HTTP/1.x on one connection: uvicorn's protocol within bounds, with stricter parsing.

Bounded are the bytes and the time that a client may make it spend without progress, and answers
that clients do not read. Whatever uvicorn does not document is used here and in `socket_wire.py`.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from engine_core.refusal import RefusalError
from server.http.answers import ErrorAnswer
from server.observe.request_record import RequestRecord
from server.service.ledger import Ledger

CONNECTION_LOG: Final = logging.getLogger("penstock.connections")
"""Clients make it speak, as often as they like: an API process puts a LogLimit on it."""


class LogLimit(logging.Filter):
    """Lets the first records of a logger through in each `seconds`, then logs the number of the
    others. The logger is used in the event loop."""

    def __init__(self, logger: logging.Logger, *, first: int = 5, seconds: float = 10.0) -> None:
        super().__init__()
        self._logger = logger
        self._first, self._seconds = first, seconds
        self._seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._seen:
            asyncio.get_running_loop().call_later(self._seconds, self._count_others)
        self._seen += 1
        return self._seen <= self._first

    def _count_others(self) -> None:
        more = self._seen - self._first
        self._seen = 0
        if more > 0:
            self._logger.warning("%d more in the last %g s", more, self._seconds)


_LOOK_SECONDS = 1.0
_NEW = 3
"""Looks at a connection before it can be among those that read least."""
_STEADY_BYTES = 16 << 10
"""Bytes that a steady client reads between two looks. The last connection is cut off only if it is
not steady: one answer may be larger than the bound of all."""


class _Watched:
    """A connection whose client lags behind, and the bytes that it has read in `looks` looks.
    Unsent bytes only shrink: nothing is written until the client has caught up."""

    def __init__(self, unsent: int, now: float) -> None:
        self.unsent, self.moved_at = unsent, now
        self.unread, self.taken, self.looks = unsent, 0, 0

    def look(self, connection: "WatchedProtocol", now: float) -> None:
        unsent = connection.transport.get_write_buffer_size()
        if unsent < self.unsent:
            self.taken += self.unsent - unsent
            self.moved_at = now
        record: RequestRecord | None = connection.scope.get("record")
        # About what of the answer waits to be written.
        held = 0 if record is None or record.held_bytes is None else record.held_bytes()
        self.unsent, self.unread = unsent, unsent + held
        self.looks += 1

    @property
    def progress(self) -> tuple[bool, float, float]:
        """Sorts those first that read least. New ones come last."""
        return self.looks < _NEW, self.moved_at, self.taken / max(self.looks, 1)

    @property
    def is_steady(self) -> bool:
        return self.looks < _NEW or self.taken >= self.looks * _STEADY_BYTES


class UnreadAnswers:
    """Watches, once a second, the connections of a process whose clients lag behind.

    A client that has read nothing for `max_seconds` is cut off. Unread bytes count in the ledger.
    Beyond its bound the slowest readers are cut off, until one steady reader is left.
    """

    def __init__(self, ledger: Ledger, max_seconds: float) -> None:
        self._ledger, self._max_seconds = ledger, max_seconds
        ledger.cut_unread = self._cut_excess
        self._watched: dict[WatchedProtocol, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: "WatchedProtocol") -> None:
        loop = asyncio.get_running_loop()
        unsent = connection.transport.get_write_buffer_size()
        watched = self._watched[connection] = _Watched(unsent, loop.time())
        self._ledger.unread += watched.unread
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def forget(self, connection: "WatchedProtocol") -> None:
        """Note that a connection's client has caught up, or is gone. Idempotent."""
        if (watched := self._watched.pop(connection, None)) is not None:
            self._ledger.unread -= watched.unread

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for connection, watched in self._watched.items():
            before = watched.unread
            watched.look(connection, now)
            self._ledger.unread += watched.unread - before
        limit = now - self._max_seconds
        for connection in [c for c, watched in self._watched.items() if watched.moved_at < limit]:
            self._cut(connection, f"it has read nothing for {self._max_seconds:g} s")
        self._ledger.make_room()
        if self._watched:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _cut_excess(self, excess: int) -> None:
        slowest = sorted(self._watched.items(), key=lambda item: item[1].progress)
        for connection, watched in slowest:
            if excess <= 0 or (len(self._watched) == 1 and watched.is_steady):
                return
            excess -= watched.unread
            self._cut(connection, "answers that are not read, and requests, are too much")

    def _cut(self, connection: "WatchedProtocol", why: str) -> None:
        unread = self._watched[connection].unread
        self.forget(connection)
        CONNECTION_LOG.warning("a client is cut off with %d unread bytes: %s", unread, why)
        connection.transport.abort()


NoteUnread = Callable[[Scope, RefusalError], bytes]
"""Takes the known part of a request and its answer, and returns the request's id."""

# A socket that is closed with bytes unread is reset, and the client may lose the answer.
_LINGER_S = 2
_STATUS_LINE = b"HTTP/"


class WatchedProtocol(asyncio.Protocol):
    """A connection that `unread_answers` watches while its client lags behind. Stands before
    uvicorn's protocol among the bases. `scope` is of what was last asked."""

    transport: asyncio.Transport
    scope: Any
    _unread_answers: UnreadAnswers

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread_answers.forget(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_answers.watch(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_answers.forget(self)


class WireProtocol(WatchedProtocol, HttpToolsProtocol):
    """A connection with one client.

    A read *makes progress* if it completes the headers or brings some of a body. The connection
    ends after `max_header_bytes` or `progress_timeout_s` of a request without progress: that bounds
    headers, trailers and anything sent between requests.
    """

    max_header_bytes = 64 << 10
    progress_timeout_s = 60.0

    def __init__(
        self,
        *args: Any,
        note_unread: NoteUnread,
        unread_answers: UnreadAnswers,
        socket_path: str | None = None,
        **options: Any,
    ) -> None:
        """`note_unread` hears of requests that cannot be read. `unread_answers` watches the
        connection while its client lags behind. WebSockets are opened at `socket_path`; the rest is
        uvicorn's."""
        super().__init__(*args, **options)
        self._note_unread, self._unread_answers = note_unread, unread_answers
        self._socket_path = socket_path and socket_path.encode()

    # As uvicorn's, it takes connections of streams alone.
    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        coalescing = CoalescingTransport(transport, self._drop_rest)
        super().connection_made(cast("asyncio.Transport", coalescing))
        self._refused = False
        self._stalled_bytes = self._read_bytes = 0
        self._deadline: float | None = self.loop.time() + self.progress_timeout_s
        self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._read_bytes = len(data)
        self._progressed = self._whole = False
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
        else:
            self._follow()

    def _parse(self, data: bytes | memoryview) -> None:
        """Raises HttpParserError."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                end = offer.args[0]
            # Outside the handler, so that an error's context is the exception of a callback.
            data = memoryview(data)[end:]
            if self._opens_socket():
                self._become_socket(data)
                return
            self._parse_without_offer()

    def _parse_without_offer(self) -> None:
        """Parse the last headers again without their offer of another protocol: after one the
        parser reads no body. Raises HttpParserError."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT is for proxies")
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _opens_socket(self) -> bool:
        """Whether the headers open a WebSocket, and all answers before it are out."""
        names = {name for name, _ in self.headers}
        last = cast("RequestResponseCycle | None", self.cycle)
        return (
            self.url.partition(b"?")[0] == self._socket_path
            and self.parser.get_method() == b"GET"
            and self.parser.get_http_version() == "1.1"
            and self._get_upgrade() == b"websocket"
            and {b"sec-websocket-key", b"sec-websocket-version"} <= names
            and not {b"content-length", b"transfer-encoding"} & names
            and (last is None or last.response_complete)
        )

    def _become_socket(self, rest: bytes | memoryview) -> None:
        """Leave the connection, on which `rest` has come, to the protocol of WebSockets."""
        self._timer.cancel()
        self._unread_answers.forget(self)
        self.scope["method"] = "GET"
        self.handle_websocket_upgrade()
        if rest:
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(bytes(rest))

    def on_headers_complete(self) -> None:
        """Raises RefusalError for headers that cannot be served. They are too large, name no host,
        or two hosts or keys, or announce a coded body, or the target is bad."""
        if (
            self._stalled_bytes + self._read_bytes > self.max_header_bytes
            and self._head_bytes() > self.max_header_bytes
        ):
            raise self._too_large()
        opens_socket = self.parser.should_upgrade() and self._opens_socket()
        if self.parser.should_upgrade() and not opens_socket:
            return
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 or names.count(b"authorization") > 1:
            self._check_repeated(names)
        if opens_socket:
            return
        if b"transfer-encoding" in names:
            self._check_codings()
        try:
            if not self.url.startswith(b"/"):
                self.url = _with_path(self.url)
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            raise RefusalError("invalid_request", "the request's target is no URL") from None
        self.headers = []  # trailers come here, and are no headers
        if not self.parser.should_keep_alive():  # uvicorn 0.38 knows but one way to write it
            self.cycle.keep_alive = False
        if self.scope["http_version"] != "1.1":
            answer_as_http10(self.cycle)
        self._progressed = True

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._progressed = True

    def on_message_complete(self) -> None:
        """The end of a request. The body after an offer is still to come."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._whole = True
            self.scope.setdefault("state", {})["body_has_come"] = True

    def _check_repeated(self, names: list[bytes]) -> None:
        for name, title in ((b"host", "Host"), (b"authorization", "Authorization")):
            if names.count(name) > 1:
                raise RefusalError("invalid_request", f"the request has two `{title}` headers")
        if self.parser.get_http_version() == "1.1" and b"host" not in names:
            raise RefusalError("invalid_request", "the request has no `Host` header")

    def _check_codings(self) -> None:
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                message = "no `Transfer-Encoding` but `chunked` is served: send the body uncoded"
                raise RefusalError("unsupported_transfer", message)

    def _head_bytes(self) -> int:
        fields = sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        return len(self.url) + fields

    def _too_large(self) -> RefusalError:
        message = f"request line and headers are larger than {self.max_header_bytes} bytes"
        return RefusalError("head_too_large", message)

    def _refuse(self, error: RefusalError) -> None:
        """Answer with `error`, after the answers to earlier requests, drop what comes, and
        close."""
        CONNECTION_LOG.warning("a request could not be read: %s", error.message)
        self._refused = True
        self._deadline = None
        last = cast("RequestResponseCycle | None", self.cycle)
        known = self._known_of_unread(last)

        def end() -> None:
            """Answer a request of which the application will not hear."""
            self._answer_last(error, self._note_unread(known, error))

        async def app(*_: Any) -> None:
            end()

        if last is None or last.response_complete:
            end()
        elif not last.more_body:
            last.on_response = end
        else:  # the bytes at fault are in the last request's body
            last.disconnected = True
            if self.pipeline:
                self.pipeline[0] = (last, app)
            elif last.response_started:
                self.transport.close()
            else:
                scope = cast("Scope", last.scope)
                scope["unreadable"] = error
                last.message_event.set()
                record: RequestRecord | None = scope.get("record")
                self._answer_last(error, b"" if record is None else record.request_id.encode())

    def _known_of_unread(self, last: RequestResponseCycle | None) -> Scope:
        """The known part of the request that cannot be read: perhaps only who sent it."""
        known: Scope = {"client": self.client}
        scope = cast("Scope | None", self.scope)
        begun = scope is not None and (last is None or scope is not last.scope or last.more_body)
        if begun and self.url:
            known["method"] = self.parser.get_method().decode()
            with suppress(httptools.HttpParserInvalidURLError):
                known["raw_path"] = httptools.parse_url(self.url).path
        return known

    def _answer_last(self, error: RefusalError, request_id: bytes) -> None:
        """`request_id` is empty while the application has not given it one."""
        if self.transport.is_closing():
            return
        answer = ErrorAnswer(error)
        headers = [*self.server_state.default_headers, *answer.raw_headers]
        if request_id:
            headers.append((b"x-request-id", request_id))
        lines = [b"%b: %b\r\n" % header for header in (*headers, (b"connection", b"close"))]
        self.transport.write(
            b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", answer.body])
        )
        self.transport.close()

    def _drop_rest(self) -> bool:
        """Read and drop, from now on, what the client may still send. False: all has been read."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self._refused or (cycle is not None and cycle.more_body):
            self._refused = True
            self._deadline = None
            self.flow.resume_reading()
        return self._refused

    def _follow(self) -> None:
        if self._whole:
            self._stalled_bytes = 0
            self._deadline = None
        elif self._progressed:
            self._stalled_bytes = 0
            self._deadline = self.loop.time() + self.progress_timeout_s
        else:
            self._stalled_bytes += self._read_bytes
            if self._stalled_bytes > self.max_header_bytes:
                self._refuse(self._too_large())
            elif self._deadline is None:
                self._deadline = self.loop.time() + self.progress_timeout_s

    def _check_deadline(self) -> None:
        """Close if it has passed, unless the client waits for us: for an answer, or to be read. One
        timer a connection follows the deadline: setting one for each request is dearer."""
        now = self.loop.time()
        look = now + self.progress_timeout_s
        if self._deadline is not None:
            if self._keeps_waiting():
                # The whole timeout, should the wait end in between.
                self._deadline = look + self.progress_timeout_s
            elif now >= self._deadline:
                self._end_stalled()
                return
            look = min(look, self._deadline)
        self._timer = self.loop.call_at(look, self._check_deadline)

    def _end_stalled(self) -> None:
        """Close. A request whose body has begun to come is answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or not cycle.more_body or cycle.response_complete:
            self.transport.close()
            return
        message = f"nothing of the body has come for {self.progress_timeout_s:g} s"
        self._refuse(RefusalError("body_timeout", message))

    def _keeps_waiting(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answering = cycle is not None and not (cycle.response_complete or cycle.more_body)
        return answering or self.flow.read_paused


def _with_path(url: bytes) -> bytes:
    """The URL, with a path for uvicorn where it ends with its host (RFC 9112, 3.2.2). Raises
    HttpParserInvalidURLError."""
    parsed = httptools.parse_url(url)
    return url if parsed.path else b"/?" + (parsed.query or b"")


def _reason(error: httptools.HttpParserError) -> RefusalError:
    """The exception of a callback, or the parser's own."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return RefusalError("invalid_request", f"this is not HTTP/1.1: {error}")
    if isinstance(error.__context__, RefusalError):
        return error.__context__
    raise error


def answer_as_http10(cycle: RequestResponseCycle) -> None:
    """Answer `cycle`, whose application has not begun, as HTTP/1.0 requires."""
    send, has_length = cycle.send, False

    async def send_without_chunks(message: Any) -> None:
        """Announce each part to the cycle as the whole body."""
        nonlocal has_length
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            has_length = b"content-length" in names
            if b"connection" not in names:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        if not has_length:
            cycle.chunked_encoding = False
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.keep_alive = False
    cycle.waiting_for_100_continue = False
    cycle.send = send_without_chunks


class CoalescingTransport:
    """Holds the headers of an answer back until its body begins, or until the iteration of the
    event loop ends. The body is sent at once: a token waits for no other stream's. Everything else
    is the wrapped transport's."""

    def __init__(self, transport: asyncio.Transport, drop_rest: Callable[[], bool]) -> None:
        """`drop_rest` has dropped what the client may still send, and returns whether it may."""
        self._transport, self._drop_rest = transport, drop_rest
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold `data` back if it is headers. Otherwise send it, after the headers that are held."""
        if self._held or not data.startswith(_STATUS_LINE):
            self._send(data)
        else:
            self._held = data
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is held back, then close: where the client may still be sending, for writing
        alone at first."""
        self._send()
        lingers = not self.is_closing() and self._drop_rest()
        if not lingers or not self._transport.can_write_eof():  # TLS
            self._transport.close()
        else:
            self._transport.write_eof()
            self._loop.call_later(_LINGER_S, self._transport.close)
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def _send(self, data: bytes = b"") -> None:
        data, self._held = self._held + data, b""
        if data and not self.is_closing():
            self._transport.write(data)
