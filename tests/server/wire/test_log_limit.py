"""Clients fill no log."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from server.wire.log_limit import LogLimit
from tests.patience import PATIENCE
from tests.server.conftest import DeploymentBuilder
from tests.server.support import server_config
from tests.virtual_time import in_virtual_time

WINDOW_S = 0.2


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test of a limit")
    limit = LogLimit(logger, first=2, seconds=WINDOW_S)
    logger.addFilter(limit)
    yield logger
    logger.removeFilter(limit)


@in_virtual_time
async def test_the_first_are_written_and_the_others_counted(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        log.warning("number %d", number)
    assert caplog.messages == ["number 0", "number 1"]
    await asyncio.sleep(2 * WINDOW_S)
    assert caplog.messages[2:] == ["98 more in the last 0.2 s"]


@in_virtual_time
async def test_a_few_are_all_written(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(6):
        log.warning("number %d", number)
        await asyncio.sleep(1.1 * WINDOW_S if number % 2 else 0)
    assert caplog.messages == [f"number {number}" for number in range(6)]


def test_bad_connections_and_wrong_keys(
    builder: DeploymentBuilder, capfd: pytest.CaptureFixture[str]
) -> None:
    config = server_config(builder.model("writer", "generate"), api_key="key")
    deployment = builder.open(config)
    started = time.monotonic()
    for _ in range(40):
        with socket.create_connection(
            ("127.0.0.1", deployment.api.port), timeout=PATIENCE
        ) as client:
            client.sendall(b"nothing\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        assert deployment.post("/v1/completions", {"prompt": "a"}).status_code == 401
    written = capfd.readouterr().err.splitlines()
    told = [line for line in written if "a request could not be read: this is not" in line]
    windows = 1 + (time.monotonic() - started) // 10
    assert 5 <= len(told) <= 5 * windows
    assert all(" more in the last 10 s" in line for line in set(written) - set(told))
