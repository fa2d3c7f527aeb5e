"""Odd clients over real sockets. After each of them the daemon answers an ordinary request on
another connection. What one connection does byte by byte is in `tests/server/http/test_wire.py`."""

import re
import socket
import time
from collections.abc import Generator

import httpx
import pytest

from tests.e2e.daemon import Daemon, metric, until_closed
from tests.patience import PATIENCE, wait_until

BODY = b'{"prompt": "The function returns", "max_tokens": 4, "temperature": 0}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
START = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n"
CLOSE = b"Connection: close\r\n"


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


@pytest.mark.parametrize("sent", [b"", BODY[:10], BODY])
def test_body_shorter_than_announced(daemon: Daemon, sent: bytes) -> None:
    """The client is gone before its body was whole: nothing of it is computed."""
    before = metric(daemon.url, "penstock_prompt_tokens_total")
    with daemon.connect() as connection:
        connection.sendall(START + b"Content-Length: 1000\r\n\r\n" + sent)
        time.sleep(0.1)
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection) == b""
    assert metric(daemon.url, "penstock_prompt_tokens_total") == before


@pytest.mark.parametrize("keep", [b"", CLOSE])
def test_half_closed_connection(daemon: Daemon, keep: bytes) -> None:
    """A client that sends no more has left: its connection ends, and what it asked for too."""
    with daemon.connect() as connection:
        body = BODY.replace(b": 4,", b": 900,")
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        before = metric(daemon.url, "penstock_generated_tokens_total")
        connection.sendall(START + keep + length + body)
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)
    assert metric(daemon.url, "penstock_generated_tokens_total") - before < 900
    wait_until(lambda: metric(daemon.url, "penstock_engine_kv_blocks_used") == 0)


def test_reset_connection(daemon: Daemon) -> None:
    with daemon.connect() as connection:
        linger = (1).to_bytes(4, "little") + bytes(4)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall(START + LENGTH + b"\r\n" + BODY)


def test_pipelined_behind_a_bad_request(daemon: Daemon) -> None:
    """A refusal ends its request, not the connection."""
    bad = START + b"Content-Length: 2\r\n\r\n{}"
    with daemon.connect() as connection:
        connection.sendall(bad + START + CLOSE + LENGTH + b"\r\n" + BODY)
        answers = until_closed(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400", b"200"]
    assert b'"completion_tokens":4' in answers
