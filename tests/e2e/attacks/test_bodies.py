"""Bodies that come in part, or slowly."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running, until_closed
from tests.patience import PATIENCE

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
UPLOAD = HEAD.replace(b"completions", b"files")
UPLOAD += b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
ASKED = {"prompt": "Hi", "max_tokens": 1}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    model = str(demo_models()[GENERATOR_NAME])
    limits = ["--max-unread-size", "2MiB", "--max-file-size", "4MiB"]
    state = str(tmp_path_factory.mktemp("state"))
    with running(model, "--threads", "1", "--state-dir", state, *limits) as daemon:
        yield daemon


def status(daemon: Daemon, note: str = "") -> int:
    body = {**ASKED, "note": note}
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=PATIENCE).status_code


def in_part(daemon: Daemon, size: int) -> socket.socket:
    """The connection of a request of whose body so many bytes have been sent, and one lacks."""
    client = daemon.connect()
    client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (size + 1) + b" " * size)
    return client


def test_of_bodies_that_come_in_part_the_largest_is_refused(daemon: Daemon) -> None:
    assert status(daemon) == 200
    with in_part(daemon, 3 << 19) as large:
        assert status(daemon, "x" * 40_000) == 200
        with in_part(daemon, 1 << 20):
            answer = until_closed(large).lower()
            assert answer.startswith(b"http/1.1 429 ")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert b"\r\nconnection: close\r\n" in answer
            assert b"of them for the body of this request" in answer
            assert status(daemon, "x" * 40_000) == 200
    assert status(daemon, "x" * (3 << 19)) == 200


def test_a_body_that_comes_too_slowly_is_ended(daemon: Daemon) -> None:
    with daemon.connect() as client, daemon.connect() as uploading:
        started = time.monotonic()
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        uploading.sendall(UPLOAD % 1000 + b"\r\n" + FILE)
        for _ in range(4):
            time.sleep(2)
            client.sendall(b" ")
            uploading.sendall(b" ")
        for answer in (until_closed(client), until_closed(uploading)):
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body_timeout" in answer
    assert 9.5 < time.monotonic() - started < 30


def upload(daemon: Daemon, size: int, sent: int) -> socket.socket:
    """The connection of an upload of `size` bytes, of which so many have been sent."""
    client = daemon.connect()
    client.sendall(UPLOAD % (len(FILE) + size + len(END)) + b"\r\n" + FILE + b" " * sent)
    return client


def test_uploads_are_written_as_they_come(daemon: Daemon) -> None:
    """Together they are larger than what may be held. Each may have 320 KiB that are read and not
    yet written."""
    with ExitStack() as stack:
        uploads = [stack.enter_context(upload(daemon, 1 << 20, 1000 << 10)) for _ in range(3)]
        assert status(daemon, "x" * (3 << 18)) == 200
        for client in uploads:
            client.sendall(b" " * (24 << 10) + END)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_an_upload_far_too_large_is_not_asked_for(daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.sendall(UPLOAD % (100 << 20) + b"Expect: 100-continue\r\n\r\n")
        answer = until_closed(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer
