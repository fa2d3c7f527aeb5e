"""Clients that do not read their answers, or read them slowly."""

import socket
import time
from contextlib import closing, suppress

from server.demo import EMBEDDER_NAME, demo_models
from tests.e2e.daemon import Daemon, metric, running
from tests.patience import wait_until

MAX_SECONDS = 3.0
ANSWER_BYTES = 2048 * 384 * 9


def asked(daemon: Daemon, texts: int) -> socket.socket:
    """A request whose answer has about 4.5 KB a text. Nothing of it is read yet."""
    return daemon.send("/v1/embeddings", {"input": ["a"] * texts}, window=2048)


def read_all(client: socket.socket) -> int:
    """How many bytes still come, until the daemon ends the connection or nothing more comes."""
    size = 0
    client.settimeout(0.5)
    with suppress(OSError):
        while data := client.recv(1 << 16):
            size += len(data)
    return size


def test_who_reads_nothing_is_cut_off_and_who_pauses_is_not() -> None:
    limits = ("--max-unread-seconds", str(MAX_SECONDS), "--max-unread-size", "24MiB")
    with (
        running(str(demo_models()[EMBEDDER_NAME]), "--threads", "1", *limits) as daemon,
        closing(asked(daemon, 2048)) as still,
        closing(asked(daemon, 2048)) as pausing,
    ):
        wait_until(lambda: metric(daemon.url, "penstock_http_requests_total", status="200") > 1)
        started = time.monotonic()
        while time.monotonic() - started < 2 * MAX_SECONDS:
            time.sleep(MAX_SECONDS / 2)
            for _ in range(64):
                assert pausing.recv(1 << 14)
        wait_until(lambda: any("cut off" in line for line in daemon.log))
        assert read_all(still) < ANSWER_BYTES <= read_all(pausing) + 8 * 64 * (1 << 14)
