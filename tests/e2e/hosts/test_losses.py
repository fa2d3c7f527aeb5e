"""A cluster that loses a process, a host or a cable: told in time, answered in time, and gone."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.daemon import Asking, Daemon, Program, metric
from tests.e2e.hosts.cluster import Cluster, cluster, none_alive, said, seconds_until
from tests.e2e.hosts.network import ip, network
from tests.e2e.life.test_life import open_stream
from tests.e2e.life.test_stages import texts
from tests.patience import PATIENCE, wait_until

SEEN, GONE, MARGIN = 3.0, 5.0, 2.0
"""Seconds until a loss is told on every host, then until all has ended; and for a busy machine."""
LONG = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True}


class InFlight:
    """A stream that has begun, and a request that waits for its whole answer."""

    def __init__(self, programs: Cluster, master: Daemon) -> None:
        with programs.hosts[0].inside():
            self._lines: list[str] = []
            self._reader = open_stream(master, self._lines)
            self._asking = Asking(master, "/v1/completions", LONG)
            wait_until(lambda: metric(master.url, "penstock_engine_running_rows") == 2)

    def assert_failed(self) -> None:
        """Each got the error of an engine that has ended."""
        answer = self._asking.answer()
        assert answer is not None
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_dead"
        self._reader.join(PATIENCE)
        last = json.loads(self._lines[-1].removeprefix("data: "))
        assert last["error"]["code"] == "engine_dead"


@dataclass
class Serving:
    programs: Cluster
    master: Daemon
    nodes: list[Program]


@contextmanager
def serving(
    folder: Path, *, hosts: int = 2, stages: int = 2, rejoin: bool = False
) -> Generator[Serving]:
    """A cluster that is ready."""
    with network(hosts) as net, cluster(net, folder) as programs:
        rest = ("--rejoin",) if rejoin else ()
        master = programs.serve(nodes=hosts, stages=stages)
        nodes = [programs.join(host, "--node-rank", str(host), *rest) for host in range(1, hosts)]
        master.wait_ready()
        yield Serving(programs, master, nodes)


def worker_of(program: Program) -> int:
    return program.children()["workers"][0]


VICTIMS: dict[str, Callable[[Serving], int]] = {
    "node": lambda it: it.nodes[0].pid,
    "worker of a node": lambda it: worker_of(it.nodes[0]),
    "worker of the master": lambda it: worker_of(it.master),
    "engine": lambda it: it.master.children()["engine_core"][0],
}
ALL_BUT_ONE_LONG = [
    "node", *(pytest.param(name, marks=pytest.mark.long) for name in VICTIMS if name != "node")
]  # fmt: skip


@pytest.mark.parametrize("victim", ALL_BUT_ONE_LONG)
def test_a_killed_process_ends_all_hosts(tmp_path: Path, victim: str) -> None:
    with serving(tmp_path) as it:
        requests, pids = InFlight(it.programs, it.master), it.programs.pids()
        killed = time.monotonic()
        os.kill(VICTIMS[victim](it), signal.SIGKILL)
        requests.assert_failed()
        print(f"answered after {time.monotonic() - killed:.1f} s")
        gone = seconds_until(lambda: none_alive(pids), killed)
        print(f"gone after {gone:.1f} s")
        assert gone < GONE + MARGIN
        assert it.master.exit_code() == 1
        assert it.nodes[0].exit_code() != 0
        if victim == "node":
            assert said(it.master, "node 1", it.programs.hosts[1].address, "is lost")


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_host_that_falls_silent_is_lost_after_3_s(tmp_path: Path, hosts: int) -> None:
    with serving(tmp_path, hosts=hosts, stages=hosts) as it:
        requests, pids = InFlight(it.programs, it.master), it.programs.pids()
        lost = it.programs.hosts[1]
        lost.unplug()
        unplugged = time.monotonic()
        others: list[Program] = [it.master, *it.nodes[1:]]
        words = ("node 1", lost.address, "is lost")
        seen = seconds_until(lambda: all(said(other, *words) for other in others), unplugged)
        print(f"seen after {seen:.1f} s")
        requests.assert_failed()
        print(f"answered after {time.monotonic() - unplugged:.1f} s")
        gone = seconds_until(lambda: none_alive(pids), unplugged)
        print(f"gone after {gone:.1f} s")
        assert seen < SEEN + MARGIN
        assert gone < SEEN + GONE + MARGIN
        assert [program.exit_code() for program in (it.master, *it.nodes)] == [1] * hosts
        assert said(it.nodes[0], "the master", "is lost")


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_an_interface_that_goes_down_is_a_loss(tmp_path: Path, host: int) -> None:
    with serving(tmp_path) as it:
        requests, pids = InFlight(it.programs, it.master), it.programs.pids()
        ip("link", "set", "net0", "down", namespace=it.programs.hosts[host].name)
        down = time.monotonic()
        requests.assert_failed()
        print(f"answered after {time.monotonic() - down:.1f} s")
        gone = seconds_until(lambda: none_alive(pids), down)
        print(f"gone after {gone:.1f} s")
        assert gone < SEEN + GONE + MARGIN
        assert [program.exit_code() for program in (it.master, *it.nodes)] == [1, 1]


@pytest.mark.long
def test_a_killed_master_ends_its_nodes(tmp_path: Path) -> None:
    with serving(tmp_path, hosts=3, stages=3) as it:
        pids = it.programs.pids()
        os.kill(it.master.pid, signal.SIGKILL)
        killed = time.monotonic()
        gone = seconds_until(lambda: none_alive(pids), killed)
        print(f"gone after {gone:.1f} s")
        assert gone < SEEN + GONE + MARGIN
        assert [node.exit_code() for node in it.nodes] == [1, 1]
        assert all(said(node, "the master", "is lost") for node in it.nodes)


@pytest.mark.long
@pytest.mark.parametrize("victim", [*VICTIMS, "master", "cable"])
def test_a_loss_during_the_start_ends_all_hosts(tmp_path: Path, victim: str) -> None:
    with network(2) as net, cluster(net, tmp_path) as programs:
        master, node = programs.serve(nodes=2, stages=2), programs.join(1)
        it = Serving(programs, master, [node])
        wait_until(lambda: node.children().get("workers") and master.children().get("workers"))
        time.sleep(random.Random(victim).uniform(0, 1.5))
        pids = programs.pids()
        lost = time.monotonic()
        lose(it, victim)
        gone = seconds_until(lambda: none_alive(pids), lost)
        print(f"gone after {gone:.1f} s")
        assert gone < SEEN + GONE + MARGIN
        assert master.exit_code() != 0
        assert node.exit_code() != 0


def lose(it: Serving, victim: str) -> None:
    match victim:
        case "cable":
            it.programs.hosts[1].unplug()
        case "master":
            os.kill(it.master.pid, signal.SIGKILL)
        case _:
            os.kill(VICTIMS[victim](it), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["master", "worker of a node", "cable"])
def test_nodes_that_rejoin_serve_again_when_the_master_is_started_again(
    demo: Daemon, tmp_path: Path, victim: str
) -> None:
    with serving(tmp_path, rejoin=True) as it:
        for _ in range(2):
            it.programs.texts(it.master)
            lost = time.monotonic()
            lose(it, victim)
            start_again(it)
            print(f"ready again after {time.monotonic() - lost:.1f} s")
        assert it.programs.texts(it.master) == texts(demo)


def start_again(it: Serving) -> None:
    """After a loss: the node survives all else, and joins a new master."""
    (node,) = it.nodes
    wait_until(lambda: it.programs.pids() == [node.pid])
    it.programs.hosts[1].plug_in()
    it.master = it.programs.serve(nodes=2, stages=2).wait_ready()


@pytest.mark.long
def test_sigterm_of_the_master_finishes_what_runs_and_ends_all_hosts(tmp_path: Path) -> None:
    with serving(tmp_path) as it:
        pids, lines = it.programs.pids(), list[str]()
        with it.programs.hosts[0].inside():
            reader: threading.Thread = open_stream(it.master, lines)
        it.master.process.send_signal(signal.SIGTERM)
        reader.join(PATIENCE)
        assert lines[-1] == "data: [DONE]"
        assert it.master.exit_code() == 0
        assert it.nodes[0].exit_code() == 0
        wait_until(lambda: none_alive(pids))
