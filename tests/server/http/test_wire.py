"""One connection with uvicorn and our protocol in this process, byte by byte."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from server.http.wire import CoalescingTransport, UnreadAnswers, WireProtocol
from server.service.ledger import Ledger
from tests.patience import PATIENCE

GET = b"GET /now HTTP/1.1\r\nHost: here\r\n"
POST = b"POST /now HTTP/1.1\r\nHost: here\r\n"
LAST = GET + b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
TIMEOUT_S = 0.3
MANY = 1 << 10
Answers = list[tuple[int, Any]]
"""Status and JSON of each."""


class App:
    """Answers with what it was sent: `/now` at once, `/later` when allowed, `/parts` in parts,
    `/early` before it has read the body, as its last."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/later":
            await self.go.wait()
        names = [name.decode() for name, _ in scope["headers"]]
        answer = {"path": scope["path"], "names": names, "body": body.decode("latin-1")}
        data = json.dumps(answer).encode()
        length = (b"content-length", b"%d" % len(data))
        headers: list[tuple[bytes, bytes]] = [] if scope["path"] == "/parts" else [length]
        if scope["path"] == "/early":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (data[:9], data[9:]):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Client:
    """The other end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes, pause: float = 0.0) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(pause)

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(end), PATIENCE)

    async def answers(self) -> Answers:
        """All that comes until the connection is closed."""
        data = await self.rest()
        found: Answers = []
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found.append((int(head.split()[1]), json.loads(data[:size])))
            data = data[size:]
        return found

    async def rest(self) -> bytes:
        """All that comes until the end; a connection that is closed with bytes unread is reset."""
        data = b""
        with suppress(ConnectionResetError):
            while piece := await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE):
                data += piece
        return data


Connect = Callable[[], AbstractAsyncContextManager[Client]]


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def connect(app: App, request: pytest.FixtureRequest) -> AsyncGenerator[Connect]:
    """With TIMEOUT_S to read in, if a test's parameter does not say otherwise."""

    class ShortTimeout(WireProtocol):
        progress_timeout_s = getattr(request, "param", TIMEOUT_S)

    config = uvicorn.Config(cast("Any", app), http=ShortTimeout, ws="none", log_config=None)
    config.load()
    state = ServerState()
    unread = UnreadAnswers(Ledger(1 << 30), PATIENCE)
    server = await asyncio.get_running_loop().create_server(
        lambda: ShortTimeout(
            config, state, {}, note_unread=lambda *_: b"req-1", unread_answers=unread
        ),
        "127.0.0.1",
        0,
    )

    @asynccontextmanager
    async def connecting() -> AsyncGenerator[Client]:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async with server:
        yield connecting
        for connection in list(state.connections):
            cast("WireProtocol", connection).transport.abort()


async def answers_to(connect: Connect, *parts: bytes, pause: float = 0.0) -> Answers:
    """All that comes on a connection of its own."""
    async with connect() as client:
        await client.send(*parts, pause=pause)
        return await client.answers()


def bodies(answers: Answers) -> list[str]:
    assert [status for status, _ in answers] == [200] * len(answers)
    return [body["body"] for _, body in answers]


def codes(answers: Answers) -> list[tuple[int, str | None]]:
    return [(status, body.get("error", {}).get("code")) for status, body in answers]


async def test_a_head_as_large_as_may_be(connect: Connect):
    def head(size: int) -> bytes:
        fixed = len(b"/now") + len(b"Host: here\r\n") + len(b"Connection: close\r\n")
        return LAST[:-2] + b"X: " + b"x" * (size - fixed - len(b"X: \r\n")) + b"\r\n\r\n"

    for size, status in ((64 << 10, 200), ((64 << 10) + 1, 431)):
        assert [found for found, _ in await answers_to(connect, head(size))] == [status]


@pytest.mark.parametrize("connect", [60.0], indirect=True)
@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (GET, b"X: x\r\n" * 170),
        (GET + b"X: ", b"x" * MANY),
        (GET + b"X", b"x" * MANY),
        (b"GET /", b"x" * MANY),
        (b"", b"\r\n" * 512),
        (POST + CHUNKED + b"1\r\nx\r\n0\r\n", b"X: x\r\n" * 170),
        (POST + CHUNKED + b"1\r\nx\r\n0\r\nX: ", b"x" * MANY),
        (POST + CHUNKED + b"1;", b"x" * MANY),
        (POST + OFFER, b"X: x\r\n" * 170),
        (GET + b"\r\n" + GET, b"X: x\r\n" * 170),
    ],
)
async def test_what_never_ends_is_not_collected(connect: Connect, begin: bytes, part: bytes):
    async with connect() as client:
        await client.send(begin)
        answering, sent = asyncio.create_task(client.answers()), 0
        while not answering.done() and sent < 1 << 20:
            await client.send(part)
            sent += len(part)
        assert sent < 80 << 10
        assert codes(await answering)[-1] == (431, "head_too_large")


async def test_trailers_are_no_headers(connect: Connect):
    trailer = b"Authorization: Bearer me\r\n\r\n"
    sent = POST + CHUNKED + b"1\r\nx\r\n0\r\n" + trailer + LAST
    (_, first), _ = await answers_to(connect, sent)
    assert first["names"] == ["host", "transfer-encoding"]


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [GET],
        [GET[:5], b"", b""],
        [*(GET[i : i + 1] for i in range(len(GET))), *[b"X: x\r\n"] * 100],
        [b"\r\n"] * 100,
        [POST + b"Content-Length: 9\r\n\r\n", b"1234"],
        [POST + CHUNKED + b"1\r\nx\r\n0\r\n", *[b"X: x\r\n"] * 100],
        [GET + b"\r\n", GET, *[b"X: x\r\n"] * 100],
    ],
)
async def test_a_request_that_stays_out_ends_the_connection(connect: Connect, parts: list[bytes]):
    loop = asyncio.get_running_loop()
    async with connect() as client:
        started = loop.time()
        sending = asyncio.create_task(client.send(*parts, pause=0.01))
        await client.rest()
        assert TIMEOUT_S * 0.9 < loop.time() - started < 60
        sending.cancel()
        await asyncio.wait([sending])


@pytest.mark.parametrize("body", [b"Content-Length: 9\r\n\r\n1234", CHUNKED + b"1\r\nx\r\n0\r\nX:"])
async def test_a_body_that_stops_is_answered(connect: Connect, body: bytes) -> None:
    assert codes(await answers_to(connect, POST + body)) == [(408, "body_timeout")]


async def test_a_slow_body_has_time(connect: Connect):
    head = POST + b"Connection: close\r\nContent-Length: 4\r\n\r\n"
    answers = await answers_to(connect, head, b"b", b"o", b"d", b"y", pause=TIMEOUT_S * 0.4)
    assert bodies(answers) == ["body"]


@pytest.mark.parametrize("behind", [b"", b"\r\n", LAST[:9], POST + b"Content-Length: 2\r\n\r\nx"])
async def test_a_client_that_waits_for_its_answer_has_time(connect: Connect, app: App, behind):
    async with connect() as client:
        await client.send(GET.replace(b"now", b"later") + b"\r\n", pause=0.05)
        await client.send(behind, pause=TIMEOUT_S * 3)
        app.go.set()
        if behind.startswith(POST):
            await client.send(b"y")
        await client.send(LAST[9:] if behind == LAST[:9] else LAST)
        expected = ["", "xy", ""] if behind.startswith(POST) else ["", ""]
        assert bodies(await client.answers()) == expected


async def test_an_idle_connection_is_uvicorns_to_close(connect: Connect):
    answers = await answers_to(connect, GET + b"\r\n", LAST, pause=TIMEOUT_S * 2)
    assert bodies(answers) == ["", ""]


OFFERED = [
    POST + OFFER + b"Content-Length: 4\r\n\r\nbody",
    POST + OFFER + CHUNKED + b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
    POST + OFFER.replace(b"h2c", b"websocket") + b"Content-Length: 4\r\n\r\nbody",
    POST + b"Upgrade: TLS/1.0\r\nConnection: upgrade\r\nX-Empty:\r\nContent-Length: 4\r\n\r\nbody",
]


@pytest.mark.parametrize("offered", OFFERED)
@pytest.mark.parametrize("size", [1, 50, 10_000])
async def test_an_offer_is_declined(connect: Connect, offered: bytes, size: int):
    """The body behind it is read, and the requests behind that."""
    sent = offered + GET + OFFER + b"\r\n" + offered + LAST
    parts = [sent[i : i + size] for i in range(0, len(sent), size)]
    assert bodies(await answers_to(connect, *parts)) == ["body", "", "body", ""]


@pytest.mark.parametrize("offer", [b"", OFFER])
async def test_a_body_that_is_asked_for(connect: Connect, offer: bytes):
    async with connect() as client:
        length = b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        await client.send(POST + offer + length, pause=0.05)
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"body" + LAST)
        assert bodies(await client.answers()) == ["body", ""]


BAD = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # a TLS client
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\n\r\n",
    b"BREW /now HTTP/1.1\r\nHost: here\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: here\r\n\r\n",
    *[POST + b"Content-Length: %b\r\n\r\n" % size for size in (b"-1", b"many", b"9" * 23)],
    POST + b"Content-Length: 5\r\nContent-Length: 4\r\n\r\nbody",
    POST + b"Content-Length: 4\r\n" + CHUNKED + b"0\r\n\r\n",
    POST + b"X: a\r\n folded\r\n\r\n",
    POST + b"X : a\r\n\r\n",
    POST + b"X: \0\r\n\r\n",
    POST.replace(b"\r\n", b"\n") + b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n\r\n",
    POST + CHUNKED + b"zz\r\n",
    POST + OFFER + CHUNKED + b"zz\r\n",
    POST + OFFER + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    b"GET /now HTTP/1.1\r\n" + OFFER + b"\r\n",
    b"GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n" + OFFER + b"\r\n",
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("split", [False, True])
async def test_a_refusal_comes_in_its_turn(connect: Connect, app: App, bad, split, caplog):
    later = GET.replace(b"now", b"later") + b"\r\n"
    async with connect() as client:
        sent = [later, GET + b"\r\n", bad] if split else [later + GET + b"\r\n" + bad]
        await client.send(*sent, pause=0.01)
        await client.send(LAST)
        app.go.set()
        found = codes(await client.answers())
        assert found == [(200, None), (200, None), (400, "invalid_request")]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.mark.parametrize("bad", BAD)
async def test_a_refusal_reaches_a_client_that_goes_on_sending(connect: Connect, bad: bytes):
    """A connection closed with bytes unread is reset, and the answer with it."""
    more = b"x" * (1 << 20)
    answers = await answers_to(connect, bad + more, more, pause=0.05)
    assert codes(answers) == [(400, "invalid_request")]


async def test_an_early_answer_reaches_a_client_that_goes_on_sending(connect: Connect) -> None:
    async with connect() as client:
        await client.send(POST.replace(b"now", b"early") + b"Content-Length: 1000000\r\n\r\n")
        await client.send(*[b"x" * 1000] * 20, pause=0.01)
        # A connection that is reset raises.
        assert (await client.until(b"}")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize("path", [b"/parts", b"/now"])
async def test_http_1_0_knows_no_chunks(connect: Connect, path: bytes, keep: bytes):
    async with connect() as client:
        length = b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        await client.send(b"POST " + path + b" HTTP/1.0\r\n" + keep + length + b"body")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close" in head
        assert b"transfer-encoding" not in head
        assert json.loads(body)["body"] == "body"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://there/now?x", "/now"),
        (b"http://there", "/"),
        (b"http://there:80?x=y", "/"),
        (b"*", "*"),
        (b"//now", "//now"),
        (b"/%6eow#part", "/now"),
    ],
)
async def test_forms_of_targets(connect: Connect, target: bytes, path: str):
    ((status, body),) = await answers_to(connect, LAST.replace(b"/now", target))
    assert (status, body["path"]) == (200, path)


@pytest.mark.parametrize("close", [b"close", b"Close", b"Upgrade, close", b"x, CLOSE"])
async def test_a_client_that_wants_no_more(connect: Connect, close: bytes):
    sent = GET + b"Connection: " + close + b"\r\n\r\n" + LAST
    assert bodies(await answers_to(connect, sent)) == [""]


@pytest.mark.parametrize("name", ["Host", "Authorization"])
async def test_two_fields_that_may_be_there_once_are_refused(connect: Connect, name: str) -> None:
    field = f"{name}: a\r\n".encode()
    once = b"" if name == "Host" else field
    sent = GET + once + b"\r\n" + GET + field + once + b"\r\n"
    (first, _), (second, body) = await answers_to(connect, sent)
    assert (first, second) == (200, 400)
    assert f"two `{name}` headers" in body["error"]["message"]


@pytest.mark.parametrize("offer", [b"", OFFER])
@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"GZIP,Chunked", b"xchunked"])
async def test_a_coded_body_is_refused_by_name(connect: Connect, coding, offer) -> None:
    sent = POST + offer + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n"
    ((status, body),) = await answers_to(connect, sent)
    assert (status, body["error"]["code"]) == (501, "unsupported_transfer")
    assert "`Transfer-Encoding`" in body["error"]["message"]


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
async def test_a_chunked_body_is_read(connect: Connect, coding: bytes) -> None:
    head = POST + b"Transfer-Encoding: " + coding + b"\r\n\r\n"
    answers = await answers_to(connect, head, b"1\r\na\r\n", b"0\r\n\r\n" + LAST)
    assert bodies(answers) == ["a", ""]


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def wrapped(*, sending: bool = False) -> tuple[CoalescingTransport, Mock]:
    """A transport around one that is open until it is closed."""
    inner = Mock(spec=asyncio.Transport)
    inner.is_closing.side_effect = lambda: inner.close.called
    return CoalescingTransport(inner, lambda: sending), inner


def written(inner: Mock) -> list[bytes]:
    return [call.args[0] for call in inner.write.call_args_list]


async def test_a_head_goes_with_the_beginning_of_its_body():
    transport, inner = wrapped()
    assert transport.get_extra_info is inner.get_extra_info
    transport.write(HEAD)
    assert written(inner) == []
    transport.write(b"body")
    transport.write(b"more")
    assert written(inner) == [HEAD + b"body", b"more"]
    transport.write(HEAD)
    await asyncio.sleep(0)
    transport.write(b"body of a later turn")
    assert written(inner) == [HEAD + b"body", b"more", HEAD, b"body of a later turn"]


@pytest.mark.parametrize("sending", [False, True])
async def test_closing_sends_what_is_held_first(sending: bool):
    """A client that may be sending gets an end behind it, and the connection stays for a while."""
    transport, inner = wrapped(sending=sending)
    assert not transport.is_closing()
    transport.write(HEAD)
    transport.close()
    assert (inner.write_eof.called, inner.close.called) == (sending, not sending)
    assert transport.is_closing()
    transport.write(b"more")
    await asyncio.sleep(0)
    assert written(inner) == [HEAD]
    transport.close()
    assert inner.close.called


async def test_a_lost_connection_gets_nothing_more():
    transport, inner = wrapped()
    transport.write(HEAD)
    inner.close()
    await asyncio.sleep(0)
    assert written(inner) == []
