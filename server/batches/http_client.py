"""A lean HTTP/1.1 client: the load generator must cost less than the server that it measures."""

import asyncio
import time
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

_IDLE_SECONDS = 2.0
"""Connections idle for longer are not used again: servers close them (uvicorn: after 5 s)."""
_MAX_WAIT_SECONDS = 600.0


class Answer(msgspec.Struct):
    """A complete answer. `pieces` of its body have their times of arrival, in seconds."""

    sent: float
    status: int = 0
    retry_after: float | None = None
    request_id: str = ""
    pieces: list[tuple[float, bytes]] = []
    ended: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join([data for _, data in self.pieces])


class Address(msgspec.Struct, frozen=True):
    """A server's address, and the API key of requests to it."""

    host: str
    port: int
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None) -> "Address":
        """The address in `http://HOST:PORT`. Raises ValueError for another kind of URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise ValueError(f"{url} is not an address: {error}") from None
        if parts.scheme != "http" or host is None or parts.path not in ("", "/"):
            raise ValueError(f"{url} is not an address such as http://127.0.0.1:8000")
        return cls(host, port, api_key)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """The bytes of a request whose body is `body` as JSON."""
        data = msgspec.json.encode(body) if body is not None else b""
        key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        headers = (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n{key}"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return headers.encode() + data


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    _transport: asyncio.Transport
    """Set by `connection_made`, before anything else is called."""

    def __init__(self) -> None:
        self.idle_since = time.perf_counter()
        self.reusable = True
        self._answer = Answer(0.0)
        self._complete: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0

    async def exchange(self, request: bytes) -> Answer:
        """Raises OSError if the connection is lost before the end."""
        self._complete = asyncio.get_running_loop().create_future()
        self._answer = Answer(time.perf_counter())
        self._transport.write(request)
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                return await self._complete
        finally:
            self._complete = None
            self.idle_since = time.perf_counter()

    def close(self) -> None:
        self.reusable = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.connection_lost(ConnectionError(f"not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        if self._complete is not None and not self._complete.done():
            hung_up = ConnectionError("the server hung up")
            self._complete.set_exception(exc if isinstance(exc, OSError) else hung_up)

    # httptools calls these while it parses.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and value.isdigit():
            self._answer.retry_after = float(value)
        elif name.lower() == b"x-request-id":
            self._answer.request_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._answer.pieces.append((self._now, body))

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if self._complete is not None and not self._complete.done():
            self._answer.ended = self._now
            self._complete.set_result(self._answer)


class HTTPClient:
    """Connections to one server, kept and used again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: deque[_Connection] = deque()

    async def open(self, count: int) -> None:
        """Connect `count` times, ahead of need. What fails here fails again at a request."""
        attempts = [self._connect() for _ in range(count)]
        opened = await asyncio.gather(*attempts, return_exceptions=True)
        self._idle.extend(each for each in opened if isinstance(each, _Connection))

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and wait for the complete answer. Raises OSError, also as TimeoutError."""
        connection = await self._take()
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _take(self) -> _Connection:
        """The connection used last, or a new one."""
        newest = time.perf_counter() - _IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_since > newest:
                return connection
            connection.close()
        return await self._connect()

    async def _connect(self) -> _Connection:
        loop, address = asyncio.get_running_loop(), self.address
        _, connection = await loop.create_connection(_Connection, address.host, address.port)
        return connection
