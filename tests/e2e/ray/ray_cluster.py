"""A Ray cluster of two nodes on this machine, and the daemons that run in it."""

import logging
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table
from ray.util.state import list_actors

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, free_port
from tests.patience import wait_until

DEMO = str(demo_models()[GENERATOR_NAME])
ON_TWO = (
    *(DEMO, "--threads", "1", "--served-model-name", GENERATOR_NAME),
    *("--executor", "ray", "--nodes", "2", "--pipeline-stages", "2"),
)
_ACTOR = "ray::RayNode"


class RayCluster:
    """Two nodes with two CPUs each. This process is a driver of it that asks only."""

    def __init__(self) -> None:
        self._dashboard = free_port()
        head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": self._dashboard}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = self._cluster.add_node(num_cpus=2)
        # Tests take warnings for errors, and a driver's handler for SIGTERM for pytest's.
        ray.init(self._cluster.address, logging_level=logging.ERROR, log_to_driver=False)

    @property
    def address(self) -> str:
        address = self._cluster.address
        assert address is not None
        return address

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self._dashboard}"

    def remove_node(self) -> None:
        """As a host that dies: the second node's processes are killed."""
        self._cluster.remove_node(self._second, allow_graceful=False)

    def run_job(self, *words: str) -> None:
        """Run `ray job WORDS`. Raises subprocess.CalledProcessError."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", *words]
        place = {"RAY_ADDRESS": self.dashboard}
        subprocess.run(command, check=True, env=os.environ | place)

    def places(self) -> list[str]:
        """What is held in Ray: placement groups, and the actors of nodes that live."""
        groups = [g["placement_group_id"] for g in placement_group_table().values()
                  if g["state"] != "REMOVED"]  # fmt: skip
        actors: list[Any] = list_actors(self.dashboard, filters=[("class_name", "=", "RayNode")])
        return [*groups, *(actor.actor_id for actor in actors if actor.state != "DEAD")]

    def end(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def serving(cluster: RayCluster, *words: str) -> Generator[Daemon]:
    """A ready daemon on both nodes. Afterwards nothing of it is left."""
    daemon = Daemon(*ON_TWO, "--ray-address", cluster.address, *words)
    try:
        yield daemon.wait_ready()
    finally:
        daemon.end()
        print("".join(daemon.log))
        wait_until(lambda: not cluster.places())


def processes_of_nodes() -> list[int]:
    """All processes of penstock under Ray that this process, or a Ray node of it, has started."""
    parents, commands = dict[int, int](), dict[int, list[str]]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "stat").read_text().rsplit(")", 1)[1].split()
            words = (process / "cmdline").read_bytes().decode().split("\0")
            parents[int(process.name)], commands[int(process.name)] = int(state[1]), words

    def is_ours(pid: int) -> bool:
        above = [pid]
        while above[-1] in parents:
            above.append(parents[above[-1]])
        under_ray = any("--executor" in words or _is_actor(words) for words in map(of, above))
        return os.getpid() in above and under_ray and (_is_actor(of(pid)) or "-m" in of(pid))

    def of(pid: int) -> list[str]:
        return commands.get(pid, [""])

    return list(filter(is_ours, commands))


def _is_actor(words: list[str]) -> bool:
    return words[0].startswith(_ACTOR)


def actor_of_node() -> int:
    """The process of the actor that runs the second node."""
    running = f"{_ACTOR}.run"
    (pid,) = (p for p in processes_of_nodes() if running in Path(f"/proc/{p}/cmdline").read_text())
    return pid
