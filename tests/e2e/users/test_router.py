"""vLLM's router in front of a daemon: it sends requests as soon as `/health` says that it may."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.daemon import Daemon, free_port
from tests.e2e.full_daemon import CLIENTS_PYTHON
from tests.patience import wait_until

REQUEST = {"model": "penstock-demo", "prompt": "The file", "max_tokens": 4}


@contextmanager
def routing(worker: str, log: Path) -> Generator[str]:
    """The URL of a router that has one worker, and tries no request twice."""
    port, metrics = free_port(), free_port()
    command = [
        str(CLIENTS_PYTHON), "-m", "vllm_router.launch_router", "--worker-urls", worker,
        "--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
        "--prometheus-port", str(metrics), "--worker-startup-check-interval", "1",
        "--disable-retries",
    ]  # fmt: skip
    with log.open("wb") as sink:
        router = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            router.kill()
            router.wait()


@pytest.mark.long
def test_a_router_begins_when_the_models_are_loaded(tmp_path: Path) -> None:
    """Before, its first request was refused (503), and it gave the worker up for a minute."""
    port = str(free_port())
    daemon = Daemon("--port", port)
    try:
        with routing(f"http://127.0.0.1:{port}", tmp_path / "log") as url:
            wait_until(lambda: is_up(url))
            answer = httpx.post(f"{url}/v1/completions", json=REQUEST, timeout=60)
            assert answer.status_code == 200, (tmp_path / "log").read_text()
    finally:
        daemon.end()


def is_up(url: str) -> bool:
    try:
        httpx.get(f"{url}/liveness")
    except httpx.TransportError:
        return False
    return True
