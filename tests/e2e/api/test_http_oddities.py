"""HTTP/1.x from its corners, byte by byte, over real sockets. After each of them the daemon answers
an ordinary request on another connection."""

import json
import re
import select
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.daemon import Daemon, metric
from tests.patience import PATIENCE, wait_until

BODY = b'{"prompt": "The function returns", "max_tokens": 4, "temperature": 0}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
START = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n"
CLOSE = b"Connection: close\r\n"


class Answer(NamedTuple):
    """One answer; `rest` is what came behind it."""

    status: int
    headers: bytes
    body: bytes
    rest: bytes


@pytest.fixture
def daemon(demo: Daemon) -> Generator[Daemon]:
    """The demo daemon, which answers as before when a test is over."""
    expected = text_of(demo)
    yield demo
    assert text_of(demo) == expected
    wait_until(lambda: metric(demo.url, "penstock_engine_running_rows") == 0)
    assert demo.process.poll() is None


def text_of(daemon: Daemon) -> str:
    answer = httpx.post(f"{daemon.url}/v1/completions", content=BODY, timeout=PATIENCE)
    return answer.json()["choices"][0]["text"]


@contextmanager
def connected(daemon: Daemon) -> Generator[socket.socket]:
    address = urlsplit(daemon.url)
    with socket.create_connection((address.hostname, address.port), PATIENCE) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """What comes until the daemon closes. Raises TimeoutError if it does not."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def parse(data: bytes) -> Answer:
    head, _, rest = data.partition(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", headers)
    size = int(found[1]) if found else len(rest)
    return Answer(int(line.split()[1]), headers, rest[:size], rest[size:])


def exchange(daemon: Daemon, *parts: bytes, pause: float = 0.0) -> Answer:
    """Send `parts` with pauses between them; all that is answered."""
    with connected(daemon) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return parse(read_to_end(connection))


def completed(answer: Answer) -> bool:
    return answer.status == 200 and json.loads(answer.body)["usage"]["completion_tokens"] == 4


def code(answer: Answer) -> str:
    return json.loads(answer.body)["error"]["code"]


def chunked(body: bytes, size: int, extension: bytes = b"") -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("extension", [b"", b";name=value"])
@pytest.mark.parametrize("trailer", [b"", b"X-Trailer: yes\r\n"])
def test_chunked_body(daemon: Daemon, size: int, extension: bytes, trailer: bytes) -> None:
    head = START + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
    end = b"0\r\n" + trailer + b"\r\n"
    assert completed(exchange(daemon, head, chunked(BODY, size, extension), end))


def test_chunks_beyond_the_limit(daemon: Daemon) -> None:
    """No length is announced, so it is counted: somewhat too much is read and refused."""
    big = chunked(b"x" * (9 << 20), 1 << 20)
    head = START + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = exchange(daemon, head, big, b"0\r\n\r\n")
    assert (answer.status, code(answer)) == (413, "body_too_large")


def test_slow_body(daemon: Daemon) -> None:
    head = START + CLOSE + LENGTH + b"\r\n"
    drops = [BODY[start : start + 4] for start in range(0, len(BODY), 4)]
    assert completed(exchange(daemon, head, *drops, pause=0.03))


def test_slow_head(daemon: Daemon) -> None:
    head = START + CLOSE + LENGTH + b"\r\n"
    drops = [head[start : start + 5] for start in range(0, len(head), 5)]
    assert completed(exchange(daemon, *drops, BODY, pause=0.03))


@pytest.mark.parametrize("sent", [b"", BODY[:10], BODY])
def test_body_shorter_than_announced(daemon: Daemon, sent: bytes) -> None:
    """The client is gone before its body was whole: nothing of it is computed."""
    before = metric(daemon.url, "penstock_prompt_tokens_total")
    with connected(daemon) as connection:
        connection.sendall(START + b"Content-Length: 1000\r\n\r\n" + sent)
        time.sleep(0.1)
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection) == b""
    assert metric(daemon.url, "penstock_prompt_tokens_total") == before


def test_body_that_never_ends_holds_nobody_up(daemon: Daemon) -> None:
    with connected(daemon) as connection:
        connection.sendall(START + b"Content-Length: 1000\r\n\r\n" + BODY)
        text_of(daemon)


@pytest.mark.parametrize("keep", [b"", CLOSE])
def test_half_closed_connection(daemon: Daemon, keep: bytes) -> None:
    """A client that sends no more has left: its connection ends, and what it asked for too."""
    with connected(daemon) as connection:
        body = BODY.replace(b": 4,", b": 900,")
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        before = metric(daemon.url, "penstock_generated_tokens_total")
        connection.sendall(START + keep + length + body)
        connection.shutdown(socket.SHUT_WR)
        read_to_end(connection)
    assert metric(daemon.url, "penstock_generated_tokens_total") - before < 900
    wait_until(lambda: metric(daemon.url, "penstock_engine_kv_blocks_used") == 0)


def test_reset_connection(daemon: Daemon) -> None:
    with connected(daemon) as connection:
        linger = (1).to_bytes(4, "little") + bytes(4)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall(START + LENGTH + b"\r\n" + BODY)


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0(daemon: Daemon, keep: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.0\r\n" + keep + LENGTH + b"\r\n"
    assert completed(exchange(daemon, head + BODY))


def test_http_1_0_stream(daemon: Daemon) -> None:
    body = BODY[:-1] + b', "stream": true}'
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    answer = exchange(daemon, b"POST /v1/completions HTTP/1.0\r\n" + length + body)
    assert answer.body.startswith(b"data: ")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert b"connection: close" in answer.headers
    assert b"transfer-encoding" not in answer.headers


def test_pipelined_requests(daemon: Daemon) -> None:
    """Four at once, answered in their order, on one connection."""
    texts = [b"one", b"two", b"three", b"four"]
    requests = []
    for text in texts:
        body = b'{"model": "penstock-demo", "prompt": "%s"}' % text
        head = b"POST /tokenize HTTP/1.1\r\nHost: here\r\nX-Request-ID: %s\r\n" % text
        requests.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    with connected(daemon) as connection:
        last = b"GET /health HTTP/1.1\r\nHost: here\r\n" + CLOSE + b"\r\n"
        connection.sendall(b"".join(requests) + last)
        rest = read_to_end(connection)
    for text in texts:
        answer = parse(rest)
        assert answer.status == 200
        assert b"x-request-id: " + text in answer.headers
        rest = answer.rest
    assert parse(rest).status == 200


def test_pipelined_behind_a_bad_request(daemon: Daemon) -> None:
    """A refusal ends its request, not the connection."""
    bad = START + b"Content-Length: 2\r\n\r\n{}"
    good = START + CLOSE + LENGTH + b"\r\n" + BODY
    answer = exchange(daemon, bad + good)
    assert answer.status == 400
    assert completed(parse(answer.rest))


def test_expect_continue(daemon: Daemon) -> None:
    """The body is asked for before it is sent."""
    with connected(daemon) as connection:
        connection.sendall(START + CLOSE + LENGTH + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert completed(parse(read_to_end(connection)))


def test_expect_continue_of_a_body_far_too_large(daemon: Daemon) -> None:
    """It is refused by its length: nothing of it is waited for."""
    with connected(daemon) as connection:
        size = b"Content-Length: %d\r\n" % (1 << 40)
        connection.sendall(START + size + b"Expect: 100-continue\r\n\r\n")
        assert parse(read_to_end(connection)).status == 413


@pytest.mark.parametrize(
    "head",
    [
        START + b"X-Large: " + b"a" * 65536,
        START + b"X-Many: a\r\n" * 6000 + b"X: a",
        b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: here",
    ],
)
def test_head_of_64_kib(daemon: Daemon, head: bytes) -> None:
    answer = exchange(daemon, head + b"\r\n" + CLOSE + LENGTH + b"\r\n" + BODY)
    assert (answer.status, code(answer)) == (431, "head_too_large")


def test_head_without_end(daemon: Daemon) -> None:
    """It is refused as it comes, not collected."""
    with connected(daemon) as connection:
        connection.sendall(START)
        sent = 0
        while not select.select([connection], [], [], 0)[0]:
            connection.sendall(b"X-Many: a\r\n" * 90)
            sent += 990
        assert sent < 16 << 20  # what the sockets between hold is also sent
        assert parse(read_to_end(connection)).status == 431


@pytest.mark.parametrize(
    "request_head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: here\r\n\r\n",
        START + b"Content-Length: -1\r\n\r\n",
        START + b"Content-Length: many\r\n\r\n",
        START + b"Content-Length: 99999999999999999999999\r\n\r\n",
        START + b"Content-Length: 5\r\n" + LENGTH + b"\r\n" + BODY,
        START + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        START + b"X: a\r\n folded\r\n\r\n",
        START + b"X : a\r\n\r\n",
        START + b"X: \x00\r\n\r\n",
        START.replace(b"\r\n", b"\n") + b"\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET http://here:99999/health HTTP/1.1\r\nHost: here\r\n\r\n",
    ],
)
def test_what_is_not_http_1(daemon: Daemon, request_head: bytes) -> None:
    """Refused at once, and the connection closed: what follows could be read in two ways."""
    answer = exchange(daemon, request_head)
    assert (answer.status, code(answer)) == (400, "invalid_request")
    assert b"connection: close" in answer.headers


OFFER = b"Upgrade: h2c\r\nHTTP2-Settings: AAM\r\nConnection: Upgrade, HTTP2-Settings"


@pytest.mark.parametrize(
    "sent",
    [
        LENGTH + b"\r\n" + BODY,
        b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 7) + b"0\r\n\r\n",
    ],
)
def test_upgrade_offered_with_a_body(daemon: Daemon, sent: bytes) -> None:
    """Java's HTTP client offers HTTP/2 with every request; the offer is not taken."""
    kept = START + OFFER + b"\r\n" + sent
    last = START + OFFER + b", close\r\n" + sent
    first = exchange(daemon, kept + kept, last, pause=0.05)
    second = parse(first.rest)
    assert completed(first)
    assert completed(second)
    assert completed(parse(second.rest))


def test_targets_and_methods(daemon: Daemon) -> None:
    expected = {
        b"GET http://elsewhere/health": 200,
        b"GET http://elsewhere/missing?x#y": 404,
        b"GET http://elsewhere": 200,
        b"OPTIONS *": 404,
        b"OPTIONS /v1/completions": 405,
        b"BREW /health": 400,
    }
    end = b" HTTP/1.1\r\nHost: here\r\n" + CLOSE + b"\r\n"
    assert {line: exchange(daemon, line + end).status for line in expected} == expected


def test_head_request(daemon: Daemon) -> None:
    """Whatever its status, it has no body: the next answer follows at once."""
    head = b"HEAD /v1/completions HTTP/1.1\r\nHost: here\r\n\r\n"
    get = b"GET /health HTTP/1.1\r\nHost: here\r\n" + CLOSE + b"\r\n"
    with connected(daemon) as connection:
        connection.sendall(head + get)
        first, _, rest = read_to_end(connection).partition(b"\r\n\r\n")
    assert b"content-length: " in first
    assert parse(rest).status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_client_that_closes(daemon: Daemon, version: bytes) -> None:
    get = b"GET /health HTTP/" + version + b"\r\nHost: here\r\nConnection: "
    for close in (b"close", b"Close", b"x, close"):
        answer = exchange(daemon, get + close + b"\r\n\r\n")
        assert (answer.status, answer.rest) == (200, b"")


def test_connection_is_kept_between_requests(daemon: Daemon) -> None:
    with connected(daemon) as connection:
        for _ in range(3):
            connection.sendall(START + LENGTH + b"\r\n" + BODY)
            data = b""
            while not data.endswith(b"}}}"):
                data += connection.recv(65536)
            assert completed(parse(data))
