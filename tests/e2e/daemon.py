"""A real daemon in a test: started by its command line, watched, and ended by pid."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.patience import PATIENCE, wait_until

READY = re.compile(r"penstock is ready on (https?://\S+) after")


class Program:
    """`penstock ARGUMENTS`."""

    def __init__(self, *arguments: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment.pop("PENSTOCK_API_KEY", None)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "server", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                self.log.append(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> dict[str, list[int]]:
        """Pids by module: engine_core, workers, server.daemon.api_process."""
        return children_of(self.pid)

    def part(self, config: str) -> int:
        """The pid of the engine or worker whose configuration is called `config`, such as
        `1.worker-0`: that of the second model's first stage."""
        commands, file = commands_of(self.pid), f"/{config}.json"
        (pid,) = (pid for pid, words in commands.items() if file in " ".join(words))
        return pid

    def exit_code(self) -> int:
        """Wait for it to end by itself."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def failure(self) -> str:
        """The last line of a start that fails, after at most the lines that it starts."""
        try:
            assert self.exit_code() == 1
        finally:
            self.end()
        assert "Traceback" not in "".join(self.log)
        assert len(self.log) <= 3, self.log
        return self.log[-1]

    def all_children(self) -> list[int]:
        return [pid for pids in self.children().values() for pid in pids]

    def end(self) -> None:
        """However it stands, nothing of it is left."""
        children = self.all_children()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        for pid in children:  # one that a test has frozen would not notice
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._reader.join(PATIENCE)
        wait_until(lambda: not any(map(is_alive, children)))


class Daemon(Program):
    """`penstock serve ARGUMENTS` on a free port of loopback."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("serve", "--port", "0", *arguments)

    def wait_ready(self, seconds: float = PATIENCE) -> "Daemon":
        wait_until(lambda: self._url() or self.process.poll() is not None, seconds)
        assert self._url(), "".join(self.log)
        return self

    @property
    def url(self) -> str:
        url = self._url()
        assert url is not None
        return url

    def connect(self, window: int | None = None) -> socket.socket:
        """A connection, which takes about `window` bytes that are not read."""
        url, client = httpx.URL(self.url), socket.socket()
        if window is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        client.settimeout(PATIENCE)
        client.connect((url.host, url.port or 80))
        return client

    def send(self, path: str, body: object, *headers: str, window: int) -> socket.socket:
        """The connection of a request of whose answer nothing is read."""
        client, data = self.connect(window), msgspec.json.encode(body)
        lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers]
        client.sendall("\r\n".join([*lines, "\r\n"]).encode() + data)
        return client

    def ask(self, path: str, /, **body: Any) -> Any:
        """The JSON of a 200."""
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _url(self) -> str | None:
        found = READY.search("".join(self.log))
        return found.group(1) if found else None


@contextmanager
def running(*arguments: str, start_seconds: float = PATIENCE) -> Generator[Daemon]:
    """A ready daemon."""
    daemon = Daemon(*arguments)
    try:
        yield daemon.wait_ready(start_seconds)
    finally:
        daemon.end()


def children_of(parent: int) -> dict[str, list[int]]:
    """Pids of a process' children by the module that each runs."""
    found: dict[str, list[int]] = {}
    for pid, words in commands_of(parent).items():
        found.setdefault(words[words.index("-m") + 1], []).append(pid)
    return found


def commands_of(parent: int) -> dict[int, list[str]]:
    """The command lines of a process' children, each ended by an empty word."""
    found: dict[int, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            its_parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (OSError, ValueError):
            continue
        if its_parent == parent and "-m" in words:
            found[int(process.name)] = words
    return found


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the daemon closes. Raises TimeoutError if it does not."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


class Asking:
    """A request in a thread of its own."""

    def __init__(self, daemon: Daemon, path: str, body: object) -> None:
        post = partial(httpx.post, f"{daemon.url}{path}", json=body, timeout=PATIENCE)
        self._asked = ThreadPoolExecutor(1).submit(post)

    def answer(self) -> httpx.Response | None:
        """Wait for it; None if the connection broke."""
        with suppress(httpx.TransportError):
            return self._asked.result(PATIENCE)
        return None


def is_alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry `labels`."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())
