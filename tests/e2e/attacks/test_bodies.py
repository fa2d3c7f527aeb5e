"""Bodies that come in part, or slowly."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running, wait_for

SIZE = (1 << 20) + (16 << 10)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
ASKED = {"prompt": "Hi", "max_tokens": 1}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    model = str(demo_models()[GENERATOR_NAME])
    with running(model, "--threads", "1", "--max-reading-size", "2MiB") as daemon:
        yield daemon


def connected(daemon: Daemon) -> socket.socket:
    url = httpx.URL(daemon.url)
    return socket.create_connection((url.host, url.port or 80), timeout=14)


def until_closed(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    return data


def status(daemon: Daemon, note: str = "") -> int:
    body = {**ASKED, "note": note}
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=20).status_code


def test_bodies_that_come_in_part_fill_a_budget_and_no_more(daemon: Daemon) -> None:
    assert status(daemon) == 200
    with ExitStack() as open_connections:
        for _ in range(2):
            client = open_connections.enter_context(connected(daemon))
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (SIZE + 1) + b" " * SIZE)
        wait_for(lambda: status(daemon, "x" * 40_000) == 429, 5)
        assert status(daemon) == 200, "a small body is never refused for that"
        with connected(daemon) as waiting:
            waiting.sendall(HEAD + b"Content-Length: 40000\r\nExpect: 100-continue\r\n\r\n")
            answer = until_closed(waiting).lower()
        assert answer.startswith(b"http/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b"\r\nconnection: close\r\n" in answer
    wait_for(lambda: status(daemon, "x" * 40_000) == 200, 5)


def test_a_body_that_comes_too_slowly_is_ended(daemon: Daemon) -> None:
    with connected(daemon) as client:
        started = time.monotonic()
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        for _ in range(4):
            time.sleep(2)
            client.sendall(b" ")
        answer = until_closed(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in answer
    assert 9.5 < time.monotonic() - started < 14
