"""SIGHUP in a real daemon: keys and certificate change, and a stream goes on to its end."""

import json
import os
import signal
import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.patience import wait_until
from tests.server.certificates import make_certificate, unverified_context

LONG = {"prompt": "The function", "max_tokens": 400, "ignore_eos": True, "stream": True}
CONNECTIONS = 12
"""Fresh ones, so that every API process answers some of them."""


def statuses(daemon: Daemon, key: str) -> set[int]:
    """How fresh connections with this key are answered."""
    headers = {"Authorization": f"Bearer {key}"}
    asked = (
        httpx.get(f"{daemon.url}/v1/models", headers=headers, verify=False)
        for _ in range(CONNECTIONS)
    )
    return {answer.status_code for answer in asked}


def shown(daemon: Daemon) -> set[bytes | None]:
    """The certificates that fresh connections see, whether they name a host (SNI) or not."""
    found: set[bytes | None] = set()
    for number in range(CONNECTIONS):
        name = "localhost" if number % 2 else None
        address = ("127.0.0.1", httpx.URL(daemon.url).port or 0)
        with (
            socket.create_connection(address) as plain,
            unverified_context().wrap_socket(plain, server_hostname=name) as connection,
        ):
            found.add(connection.getpeercert(binary_form=True))
    return found


def hang_up(daemon: Daemon, word: str) -> list[str]:
    """SIGHUP; the lines that it is answered with, one of them with `word`."""
    before = len(daemon.log)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any(word in line for line in daemon.log[before:]))
    return daemon.log[before:]


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_keys_and_certificate_change_under_a_stream(tmp_path: Path, processes: int) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    cert, key = make_certificate(tmp_path)
    first = {ssl.PEM_cert_to_DER_cert(cert.read_text())}
    access = ["--api-key-file", str(keys), "--tls-cert", str(cert), "--tls-key", str(key)]
    model = str(demo_models()[GENERATOR_NAME])
    with running(model, *access, "--api-workers", str(processes), "--threads", "1") as daemon:
        with httpx.stream(
            "POST",
            f"{daemon.url}/v1/completions",
            json=LONG,
            headers={"Authorization": "Bearer old"},
            verify=False,
            timeout=60,
        ) as stream:
            lines = stream.iter_lines()
            next(lines)

            keys.write_text("new\n")
            make_certificate(tmp_path)
            second = {ssl.PEM_cert_to_DER_cert(cert.read_text())}
            hang_up(daemon, "read again")
            wait_until(lambda: statuses(daemon, "old") == {401})
            assert statuses(daemon, "new") == {200}
            wait_until(lambda: shown(daemon) == second != first)

            events = [line.removeprefix("data: ") for line in lines if line]
            assert events.pop() == "[DONE]"
            assert json.loads(events[-1])["choices"][0]["finish_reason"] == "length"

        keys.unlink()
        key.write_text("no key")
        said = hang_up(daemon, f"{key} holds no PEM private key")
        assert [line.split(": ")[0].split()[-1] for line in said] == ["--api-key-file", "--tls-key"]
        assert f"{keys} cannot be read" in said[0]
        assert statuses(daemon, "new") == {200}
        assert shown(daemon) == second

        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.exit_code() == 0


def test_one_that_comes_while_the_start_is_prepared_is_followed_later(tmp_path: Path) -> None:
    """The daemon reads its second file of keys, a pipe, until the test has written it."""
    keys, pipe = tmp_path / "keys", tmp_path / "pipe"
    keys.write_text("old\n")
    os.mkfifo(pipe)
    model = str(demo_models()[GENERATOR_NAME])
    daemon = Daemon(model, "--api-key-file", str(keys), "--api-key-file", str(pipe))
    try:
        with pipe.open("w") as writer:
            keys.write_text("new\n")
            daemon.process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            writer.write("other\n")
        daemon.wait_ready()
        wait_until(lambda: any("which is not read again" in line for line in daemon.log))
        wait_until(lambda: statuses(daemon, "new") == {200})
        assert statuses(daemon, "old") == {401}
        assert statuses(daemon, "other") == {200}
    finally:
        daemon.end()
