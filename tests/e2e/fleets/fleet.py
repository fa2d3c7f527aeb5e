"""Two daemons with a generator each, behind a router."""

import os
import signal
import subprocess
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from server.demo import demo_models
from tests.e2e.daemon import Daemon, free_port, metric
from tests.e2e.fleets.routers import Command
from tests.patience import PATIENCE, wait_until

MODEL = "penstock-demo"
START_S = 60


@dataclass
class Fleet:
    url: str
    daemons: list[Daemon]
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    def ask(self, prompt: str, **body: Any) -> httpx.Response:
        """The whole answer of a completion, also of a streamed one."""
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **body}
        return httpx.post(f"{self.url}/v1/completions", json=asked, timeout=PATIENCE)

    def begin(self, prompt: str, **body: Any) -> Future[httpx.Response]:
        """Ask in a thread of its own."""
        return self.threads.submit(self.ask, prompt, **body)

    def answered(self) -> list[int]:
        """Completions that each daemon has answered with 200."""
        labels = {"endpoint": "/v1/completions", "status": "200"}
        return [
            round(metric(each.url, "penstock_http_requests_total", **labels))
            for each in self.daemons
        ]

    def running(self) -> list[int]:
        """Requests that each daemon has not answered yet."""
        return [
            round(metric(each.url, "penstock_in_flight", what="requests")) for each in self.daemons
        ]

    def busy(self) -> int:
        """Wait until one daemon has something to do. Its number."""
        wait_until(lambda: any(self.running()))
        return self.running().index(1)


def unlike() -> str:
    """A prompt that begins as no other does."""
    return f"{uuid4().hex} is"


def frozen(daemon: Daemon, stop: bool) -> None:
    """Stop the daemon's engine, or let it go on: what it admits does not begin."""
    for pid in daemon.children()["engine_core"]:
        os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)


@contextmanager
def fleet(command: Command, folder: Path, *arguments: str) -> Generator[Fleet]:
    """Ready: the router has answered once."""
    folder_of_model = str(demo_models()[MODEL])
    own = (folder_of_model, "--served-model-name", MODEL, "--threads", "1", "--state-dir", "none")
    daemons = [Daemon(*own, *arguments) for _ in range(2)]
    port, log = free_port(), folder / "router.log"
    try:
        urls = [each.wait_ready().url for each in daemons]
        with log.open("wb") as sink:
            router = subprocess.Popen(
                command(urls, port, free_port()), stdout=sink, stderr=sink, cwd=folder
            )
        served = Fleet(f"http://127.0.0.1:{port}", daemons)
        try:
            wait_until(lambda: _serves(served), START_S)
            yield served
        finally:
            router.kill()
            router.wait()
            print(log.read_text())  # pytest shows it where a test fails
            served.threads.shutdown()
    finally:
        for each in daemons:
            each.end()


def _serves(served: Fleet) -> bool:
    """It has found both daemons: of requests at a time, each has answered some."""
    asked = [served.begin(unlike(), max_tokens=32) for _ in range(4)]
    with suppress(httpx.TransportError):
        for each in asked:
            each.result(PATIENCE)
    return all(served.answered())
