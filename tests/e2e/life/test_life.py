"""Starts that fail, deaths, and orderly ends."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Asking, Daemon, is_alive, metric, running
from tests.patience import PATIENCE, wait_until

LONG = {"prompt": "The function", "max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def generator() -> str:
    return str(demo_models()[GENERATOR_NAME])


def test_a_spoilt_model_fails_the_start_with_one_clear_line(generator, tmp_path) -> None:
    """In one process: tests/server/test_cli.py, with models that are spoilt in other ways."""
    weights = Path(shutil.copytree(generator, tmp_path / "model")) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    daemon = Daemon(str(weights.parent))
    daemon.failure()
    assert any("model.safetensors" in line for line in daemon.log), daemon.log


def serves(pid: int, address: tuple[str, int]) -> bool:
    """The process holds the server's end of the connection from `address`."""
    port = f":{address[1]:04X}"
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in table if row[2].endswith(port)}
    return any(str(file.readlink()) in inodes for file in Path(f"/proc/{pid}/fd").iterdir())


def open_stream(
    daemon: Daemon, lines: list[str], address: list[tuple[str, int]] | None = None
) -> threading.Thread:
    """Read a long completion's events into `lines` until the stream ends or breaks; returns once
    it has begun. `address` gets our end of the connection."""

    def read() -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            httpx.stream(
                "POST", f"{daemon.url}/v1/completions", json=LONG | {"stream": True}, timeout=60
            ) as answer,
        ):
            if address is not None:
                address.append(answer.extensions["network_stream"].get_extra_info("client_addr"))
            lines.extend(filter(None, answer.iter_lines()))

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: lines)
    return reader


@pytest.mark.parametrize("victim", ["workers", "engine_core"])
def test_a_killed_part_is_answered_at_once_and_ends_the_daemon(generator: str, victim: str) -> None:
    with running(generator, "--max-restarts", "0") as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        waiting = Asking(daemon, "/v1/completions", LONG)
        wait_until(lambda: metric(daemon.url, "penstock_engine_running_rows") == 2)
        (pid,) = daemon.children()[victim]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        answer = waiting.answer()
        assert answer is not None
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_dead"
        reader.join(PATIENCE)
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert daemon.exit_code() == 1
        assert time.monotonic() - killed < 25
        assert not daemon.children()


def test_sigterm_finishes_what_runs_and_refuses_what_is_new(generator: str) -> None:
    with running(generator, "--drain-timeout", "120") as daemon:
        lines: list[str] = []
        reader = open_stream(daemon, lines)
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{daemon.url}/health/ready").status_code == 503)
        refused = httpx.post(f"{daemon.url}/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        reader.join(PATIENCE)
        assert lines[-1] == "data: [DONE]"
        assert daemon.exit_code() == 0
    assert daemon.log[-1].endswith(" stopped\n")


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGTERM]
)
def test_when_an_api_process_dies_the_other_finishes(
    generator: str, number: signal.Signals
) -> None:
    words = ("--api-workers", "2", "--drain-timeout", "120", "--max-restarts", "0")
    with running(generator, *words) as daemon:
        lines: list[str] = []
        address: list[tuple[str, int]] = []
        reader = open_stream(daemon, lines, address)
        first, second = daemon.children()["server.daemon.api_process"]
        idle = first if serves(second, *address) else second
        os.kill(idle, number)
        wait_until(lambda: any("stopping" in line for line in daemon.log))
        assert httpx.get(f"{daemon.url}/health/ready").status_code == 503
        reader.join(PATIENCE)
        assert lines[-1] == "data: [DONE]"
        assert daemon.exit_code() == 1
    assert any(f"was killed by {number.name}; stopping" in line for line in daemon.log)


def test_nothing_outlives_a_killed_supervisor(generator: str) -> None:
    with running(generator) as daemon:
        children = daemon.all_children()
        assert len(children) == 3
        os.kill(daemon.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, children)))


@pytest.mark.parametrize(
    ("largest_file", "words"),
    [
        (0, "cannot make a folder for sockets: No usable temporary directory found in"),
        (100, "/penstock-"),
    ],
)
def test_a_file_system_that_refuses(generator: str, largest_file: int, words: str) -> None:
    daemon = Daemon(generator, "--state-dir", "none")
    # Before it has imported anything. What is larger is refused by the kernel, as on a full disk.
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    line = daemon.failure()
    assert line.startswith("penstock: error: cannot ")
    assert words in line
    assert "TMPDIR" in line


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, mounted with the options that a test asks for."""
    command = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only those who may mount have a full disk at hand")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("small_disk", "words"),
    [
        ("size=4k", "penstock: error: cannot write to {}/penstock-"),
        ("nr_inodes=3", "penstock: error: cannot write to {}/penstock-"),
        ("nr_inodes=6", "the engine of generator exited with status 1"),
    ],
    indirect=["small_disk"],
)
def test_no_space_left(
    generator: str, small_disk: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    daemon = Daemon(generator, "--state-dir", "none")
    assert words.format(small_disk) in daemon.failure()
    assert f"{small_disk}/penstock-" in "".join(daemon.log)
    assert "No space left on device" in "".join(daemon.log)
