"""A pipeline over the hosts of a test: `penstock serve` on the first, `penstock join` on others."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Asking, Daemon, Program, is_alive
from tests.e2e.hosts.network import Network
from tests.e2e.life.test_stages import BODIES, texts
from tests.patience import wait_until

DEMO = str(demo_models()[GENERATOR_NAME])
PORT = 7000
"""The cluster's first port of three."""


class Cluster:
    """The programs that a test starts on the hosts of `net`. `via` counts the master's networks."""

    def __init__(self, net: Network, folder: Path, via: int = 0) -> None:
        self.hosts = net.hosts
        self.master_address = f"{net.hosts[0].addresses[via]}:{PORT}"
        self.secret = write_secret(folder / "secret", "of the right cluster")
        self.started: list[Program] = []

    def serve(self, *arguments: str, nodes: int, stages: int) -> Daemon:
        """Start the master, which waits for the other nodes."""
        words = ("--threads", "1", "--served-model-name", GENERATOR_NAME)
        count = ("--nodes", str(nodes), "--pipeline-stages", str(stages))
        with self.hosts[0].inside():
            master = Daemon(DEMO, *words, *count, *self._place(self.secret), *arguments)
        self.started.append(master)
        return master

    def join(self, host: int, *arguments: str, secret: Path | None = None) -> Program:
        """Start a node on the host of this number."""
        with self.hosts[host].inside():
            node = Program("join", *self._place(secret or self.secret), *arguments)
        self.started.append(node)
        return node

    def _place(self, secret: Path) -> tuple[str, ...]:
        return ("--master", self.master_address, "--cluster-secret-file", str(secret))

    def texts(self, master: Daemon) -> list[list[str]]:
        """The answers to `test_stages.BODIES`."""
        with self.hosts[0].inside():
            return texts(master)

    def ask(self, master: Daemon) -> list[Asking]:
        """The same requests, all at once."""
        with self.hosts[0].inside():
            return [Asking(master, "/v1/completions", body) for body in BODIES]

    def get(self, url: str) -> httpx.Response:
        with self.hosts[0].inside():
            return httpx.get(url)

    def pids(self) -> list[int]:
        """All processes of the programs that run."""
        running = [program for program in self.started if program.process.poll() is None]
        return [pid for program in running for pid in (program.pid, *program.all_children())]

    def end(self) -> None:
        for program in self.started:
            program.end()


@contextmanager
def cluster(net: Network, folder: Path, via: int = 0) -> Generator[Cluster]:
    """One whose programs are ended. What they logged is shown where the test fails."""
    programs = Cluster(net, folder, via)
    try:
        yield programs
    finally:
        programs.end()
        for program in programs.started:
            print(f"{program.process.args}:\n{''.join(program.log)}")


def write_secret(file: Path, secret: str) -> Path:
    file.touch(0o600)
    file.write_text(secret + "\n")
    return file


def texts_of(asked: list[Asking]) -> list[list[str]] | None:
    """The answers, or None if one is an error."""
    answers = [asking.answer() for asking in asked]
    if any(answer is None or answer.status_code != 200 for answer in answers):
        return None
    bodies = [answer.json() for answer in answers if answer is not None]
    return [[choice["text"] for choice in body["choices"]] for body in bodies]


def seconds_until(condition: Callable[[], Any], since: float) -> float:
    wait_until(condition)
    return time.monotonic() - since


def none_alive(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def said(program: Program, *words: str) -> bool:
    """A line of its log has all these words."""
    return any(all(word in line for word in words) for line in program.log)


def last_words(program: Program) -> str:
    """The one line of an end that is an error."""
    assert program.exit_code() == 1, program.log
    lines = [line for line in program.log if " INFO " not in line]
    assert len(lines) == 1, program.log
    return lines[0]
