"""Starts that fail, deaths, and orderly ends."""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, is_alive, metric, running, wait_for

LONG = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture
def generator() -> str:
    return str(demo_models()[GENERATOR_NAME])


def copy_of(generator: str, folder: Path) -> Path:
    """A copy of the demo generator that a test may spoil."""
    return Path(shutil.copytree(generator, folder / "model"))


def spoil_weights_missing(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "safetensors"


def spoil_weights_truncated(folder: Path) -> str:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    return "model.safetensors"


def spoil_architecture(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MambaModel"]}))
    return "MambaModel"


def spoil_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return "config.json"


def spoil_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").write_text('{"model"')
    return "tokenizer.json"


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_weights_missing,
        spoil_weights_truncated,
        spoil_architecture,
        spoil_config,
        spoil_tokenizer,
    ],
)
def test_a_spoilt_model_fails_the_start_with_one_clear_line(generator, tmp_path, spoil) -> None:
    folder = copy_of(generator, tmp_path)
    word = spoil(folder)
    daemon = Daemon(str(folder))
    try:
        assert daemon.exit_code(20) == 1
    finally:
        daemon.end()
    assert any(word in line for line in daemon.log), daemon.log
    assert len(daemon.log) <= 3
    assert "Traceback" not in "".join(daemon.log)


def test_a_port_in_use_fails_the_start(generator: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = Daemon(generator, "--port", str(port))
        try:
            assert daemon.exit_code(10) == 1
        finally:
            daemon.end()
        assert f"127.0.0.1:{port}" in daemon.log[-1]


def open_stream(daemon: Daemon, lines: list[str]) -> threading.Thread:
    """Read a long completion's events into `lines` until the stream ends or breaks; returns once
    it has begun."""

    def read() -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            httpx.stream(
                "POST", f"{daemon.url}/v1/completions", json=LONG | {"stream": True}, timeout=60
            ) as answer,
        ):
            lines.extend(filter(None, answer.iter_lines()))

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: lines, 20)
    return reader


@pytest.mark.parametrize("victim", ["workers", "engine_core"])
def test_a_killed_part_is_answered_at_once_and_ends_the_daemon(generator: str, victim: str) -> None:
    with running(generator) as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{daemon.url}/v1/completions", json=LONG, timeout=60)
            )
        )
        waiting.start()
        wait_for(lambda: metric(daemon.url, "penstock_engine_running_rows") == 2, 10)
        (pid,) = daemon.children()[victim]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        waiting.join(5)
        assert answers[0].status_code == 500
        assert answers[0].json()["error"]["code"] == "engine_dead"
        assert httpx.get(f"{daemon.url}/health/live").status_code == 503
        reader.join(5)
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert daemon.exit_code(5) == 1
        assert time.monotonic() - killed < 5
        assert not daemon.children()


def test_sigterm_finishes_what_runs_and_refuses_what_is_new(generator: str) -> None:
    with running(generator) as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        daemon.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 503, 3)
        refused = httpx.post(f"{daemon.url}/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        reader.join(30)
        assert lines[-1] == "data: [DONE]"
        assert daemon.exit_code(10) == 0


def test_the_drain_has_a_deadline(generator: str) -> None:
    with running(generator, "--drain-timeout", "0.2") as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        daemon.process.send_signal(signal.SIGTERM)
        reader.join(10)
        assert "error" in json.loads(lines[-1].removeprefix("data: "))
        assert daemon.exit_code(10) == 0


def test_a_second_signal_ends_at_once(generator: str) -> None:
    with running(generator, "--drain-timeout", "60") as daemon:
        reader = open_stream(daemon, [])
        daemon.process.send_signal(signal.SIGINT)
        wait_for(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 503, 5)
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.exit_code(2) == 130
        reader.join(5)


def test_nothing_outlives_a_killed_supervisor(generator: str) -> None:
    with running(generator) as daemon:
        children = [pid for pids in daemon.children().values() for pid in pids]
        assert len(children) == 3
        os.kill(daemon.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, children)), 5)
