"""Two nodes on loopback: what they serve, how they end, and how one is lost. Hosts of their own:
tests/e2e/hosts."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.cluster.address import Address
from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Asking, Daemon, Program, is_alive, metric
from tests.e2e.life.test_life import LONG
from tests.e2e.life.test_stages import texts
from tests.patience import wait_until

MODEL = (str(demo_models()[GENERATOR_NAME]), "--served-model-name", GENERATOR_NAME)
GONE = 8.0
"""Seconds until every process has ended: 5, and more on a busy machine."""


class Pair:
    """A master, and a node if one has joined."""

    def __init__(self, folder: Path) -> None:
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text("0123456789abcdef")
        master = str(Address.free("127.0.0.1"))
        self._place = ("--master", master, "--cluster-secret-file", str(secret))
        self.programs: list[Program] = []

    def serve(self) -> Daemon:
        words = ("--nodes", "2", "--pipeline-stages", "2", "--threads", "1")
        master = Daemon(*MODEL, *words, *self._place)
        self.programs.append(master)
        return master

    def join(self, *arguments: str) -> Program:
        node = Program("join", *self._place, *arguments)
        self.programs.append(node)
        return node

    def processes(self) -> list[int]:
        return [pid for each in self.programs for pid in (each.pid, *each.all_children())]


@contextmanager
def pair(folder: Path) -> Generator[Pair]:
    programs = Pair(folder)
    try:
        yield programs
    finally:
        for program in programs.programs:
            program.end()


def says(program: Program, words: str) -> bool:
    return any(words in line for line in program.log)


def test_two_nodes_give_the_answers_of_one_host_and_end_with_the_master(
    demo: Daemon, tmp_path: Path
) -> None:
    with pair(tmp_path) as programs:
        master, node = programs.serve(), programs.join()
        assert texts(master.wait_ready()) == texts(demo)
        assert [len(each.children()["workers"]) for each in (master, node)] == [1, 1]
        processes = programs.processes()
        master.process.send_signal(signal.SIGTERM)
        assert (master.exit_code(), node.exit_code()) == (0, 0)
        assert not any(map(is_alive, processes))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_master_that_waits_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with pair(tmp_path) as programs:
        master = programs.serve()
        wait_until(lambda: says(master, "waiting for 1 more node at 127.0.0.1:"))
        master.process.send_signal(number)
        assert master.exit_code() == 0


@pytest.mark.long
def test_a_node_with_another_model_ends_the_start_on_both(tmp_path: Path) -> None:
    other = shutil.copytree(MODEL[0], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 20000.0}))
    with pair(tmp_path) as programs:
        master, node = programs.serve(), programs.join("--model", str(other))
        reason = f"config.json of {other} is not as the master's {MODEL[0]} has it"
        assert (master.exit_code(), node.exit_code()) == (1, 1)
        assert node.log[-1] == f"penstock: error: {reason}\n"
        node_1 = "the node 1 (127.0.0.1)"
        assert master.log[-1] == f"penstock: error: {node_1} has not started: {reason}\n"


VICTIMS: dict[str, tuple[Callable[[Daemon, Program], int], str]] = {
    "node": (lambda _, node: node.pid, "the node 1 (127.0.0.1) is lost: its connection is closed"),
    "worker of the node": (
        lambda _, node: node.children()["workers"][0],
        f"the node 1 (127.0.0.1) is lost: the worker 1 of {GENERATOR_NAME} was killed by SIGKILL",
    ),
    "worker of the master": (
        lambda master, _: master.children()["workers"][0],
        f"the worker 0 of {GENERATOR_NAME} was killed by SIGKILL",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_loss_is_answered_named_and_the_end(tmp_path: Path, victim: str) -> None:
    which, line = VICTIMS[victim]
    with pair(tmp_path) as programs:
        master, node = programs.serve(), programs.join()
        master.wait_ready()
        asking = Asking(master, "/v1/completions", LONG)
        wait_until(lambda: metric(master.url, "penstock_engine_running_rows") == 1)
        processes, since = programs.processes(), time.monotonic()
        os.kill(which(master, node), signal.SIGKILL)
        answer = asking.answer()
        assert answer is not None
        assert answer.status_code == 500
        wait_until(lambda: not any(map(is_alive, processes)))
        assert time.monotonic() - since < GONE
        assert master.log[-1] == f"penstock: error: {line}; stopping\n"
        assert master.exit_code() == 1
        if victim != "node":
            assert node.exit_code() == 1


@pytest.mark.long
def test_a_node_that_is_stopped_is_lost(tmp_path: Path) -> None:
    with pair(tmp_path) as programs:
        master, node = programs.serve(), programs.join()
        master.wait_ready()
        node.process.send_signal(signal.SIGTERM)
        assert (node.exit_code(), master.exit_code()) == (0, 1)
        assert says(master, "the node 1 (127.0.0.1) is lost: it was stopped by a signal; stopping")
        assert node.log[-1].endswith(" stopped\n")


@pytest.mark.long
def test_a_node_that_rejoins_serves_with_the_next_master(demo: Daemon, tmp_path: Path) -> None:
    with pair(tmp_path) as programs:
        node, master = programs.join("--rejoin"), programs.serve()
        master.wait_ready()
        os.kill(master.pid, signal.SIGKILL)
        wait_until(lambda: says(node, "is lost: its connection is closed; joining again"))
        assert texts(programs.serve().wait_ready()) == texts(demo)
        assert node.process.poll() is None
