"""A daemon whose standard error is full, closed, or read by nobody serves and ends as any other."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from server.demo import EMBEDDER_NAME, demo_models
from tests.e2e.daemon import children_of, free_port, is_alive
from tests.engine_core.panicking import BAD, make_panicking
from tests.patience import PATIENCE, wait_until

LINE = b"x" * 99 + b"\n"
EMBEDDER = demo_models()[EMBEDDER_NAME]


class Served:
    """`penstock serve` of the demo embedder, with the standard error that it is given."""

    def __init__(self, stderr: int | None, *arguments: str, model: Path = EMBEDDER) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-P", "-m", "server", "serve", str(model)]
        command += ["--port", str(self.port)]
        if stderr is None:
            command = ["sh", "-c", 'exec "$0" "$@" 2>&-', *command]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [*command, "--threads", "1", *arguments],
            stderr=stderr,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def wait_ready(self) -> None:
        wait_until(lambda: self._is_ready() or self.process.poll() is not None)
        assert self.process.poll() is None

    def _is_ready(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health/ready", timeout=PATIENCE).status_code == 200
        return False

    def embeds(self, text: str = "water") -> bool:
        answer = httpx.post(f"{self.url}/v1/embeddings", json={"input": text}, timeout=PATIENCE)
        assert answer.is_success or "cannot be tokenized" in answer.text
        return answer.is_success

    def children(self) -> list[int]:
        return [pid for pids in children_of(self.process.pid).values() for pid in pids]

    def stop(self) -> None:
        """SIGTERM ends it in time, with status 0, and nothing of it is left."""
        children = self.children()
        assert len(children) >= 3
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0
        assert time.monotonic() - started < 50
        wait_until(lambda: not any(map(is_alive, children)))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def served(stderr: int | None, *arguments: str, model: Path = EMBEDDER) -> Generator[Served]:
    daemon = Served(stderr, *arguments, model=model)
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.end()


def fill(descriptor: int) -> None:
    """Leave no room in a pipe, for whoever writes to it."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (len(LINE), 1):
        with suppress(BlockingIOError):
            while True:
                os.write(own, LINE[:size])
    os.close(own)


@contextmanager
def full_device() -> Generator[int]:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        yield full.fileno()


@contextmanager
def full_pipe() -> Generator[int]:
    reader, writer = os.pipe()
    fill(writer)
    yield writer
    os.close(writer)
    os.close(reader)


@contextmanager
def full_socket() -> Generator[int]:
    reader, writer = socket.socketpair()
    with reader, writer:
        with suppress(BlockingIOError):
            while True:
                writer.send(LINE, socket.MSG_DONTWAIT)
        yield writer.fileno()


@pytest.mark.parametrize(
    "full", [full_device, full_pipe, pytest.param(full_socket, marks=pytest.mark.long)]
)
def test_one_that_was_full_from_the_start(
    full: Callable[[], AbstractContextManager[int]],
) -> None:
    with full() as stderr, served(stderr, "--log-level", "debug") as daemon:
        assert daemon.embeds()
        daemon.stop()


@pytest.mark.long
def test_none_at_all() -> None:
    with served(None) as daemon:
        for pid in [daemon.process.pid, *daemon.children()]:
            assert Path(f"/proc/{pid}/fd/2").readlink() == Path("/dev/null")
        assert daemon.embeds()
        daemon.stop()
        assert daemon.process.stdout is not None
        assert daemon.process.stdout.read() == b""  # nor does it write elsewhere


@pytest.mark.long
def test_a_pipe_whose_reader_has_gone() -> None:
    reader, writer = os.pipe()
    with served(writer) as daemon:
        os.close(reader)
        assert daemon.embeds()
        daemon.stop()
    os.close(writer)


@pytest.mark.long
def test_a_reader_that_stops_while_every_process_has_something_to_say(tmp_path: Path) -> None:
    model = shutil.copytree(EMBEDDER, tmp_path / "panicking")
    raw = Tokenizer.from_file(str(model / "tokenizer.json"))
    make_panicking(raw)
    raw.save(str(model / "tokenizer.json"))
    reader, writer = os.pipe()
    with served(writer, "--state-dir", str(tmp_path / "state"), model=model) as daemon:
        fill(writer)
        for _ in range(3):
            # The API process warns of what it cannot read, and the tokenizer's library of texts.
            with socket.create_connection(
                ("127.0.0.1", daemon.port), timeout=PATIENCE
            ) as connection:
                connection.sendall(b"\x16\x03 no HTTP\r\n\r\n")
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
            assert not daemon.embeds(BAD)
            assert daemon.embeds()
        # The supervisor warns of it, and starts another.
        (batches,) = children_of(daemon.process.pid)["server.batches.batch_process"]
        os.kill(batches, signal.SIGKILL)
        wait_until(lambda: batches not in daemon.children())
        assert daemon.embeds()
        daemon.stop()
    os.close(writer)
    os.close(reader)


@pytest.mark.parametrize("arguments", [["config", "--check", "/nowhere"], ["config", "--nonsense"]])
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2>/dev/null"])
def test_the_exit_code_of_a_command_is_that_of_its_work(
    arguments: list[str], redirection: str
) -> None:
    command = ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-P", "-m", "server"]
    ended = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == (1 if "--check" in arguments else 2)
    assert ended.stdout == b""
