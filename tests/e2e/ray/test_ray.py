"""Two nodes of a Ray cluster serve one model, give the texts of one host, and leave nothing."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator

import httpx
import pytest
from ray.job_submission import JobSubmissionClient

from server.demo import GENERATOR_NAME
from tests.e2e.daemon import READY, Asking, Daemon, metric
from tests.e2e.hosts.cluster import none_alive, said, seconds_until
from tests.e2e.life.test_stages import BODIES, texts
from tests.e2e.ray.ray_cluster import (
    ON_TWO,
    RayCluster,
    actor_of_node,
    processes_of_nodes,
    serving,
)
from tests.patience import wait_until

GONE, MARGIN = 5.0, 2.0
LONG = {"prompt": "The function", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def cluster() -> Generator[RayCluster]:
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.end()


def test_two_nodes_give_the_texts_of_one_host_and_leave_nothing(
    demo: Daemon, cluster: RayCluster
) -> None:
    with serving(cluster) as daemon:
        assert texts(daemon) == texts(demo)
        # Each line once, by whose it is, and not in colours.
        for words in ("joined the master", f"worker 1 of {GENERATOR_NAME}: ready after"):
            (line,) = (line for line in daemon.log if words in line)
            assert re.match(r"\(node 1 pid=\d+\) \d\d:\d\d:\d\d INFO ", line)
        pids = processes_of_nodes()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        wait_until(lambda: none_alive(pids) and not cluster.places())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "3", "--pipeline-stages", "4"), "needed are 2 and 1 and 1 CPUs on 3 nodes"),
        (("--device", "cuda"), "needed are 1 and 1 GPUs on 2 nodes"),
    ],
)
def test_a_cluster_without_room(cluster: RayCluster, words: tuple[str, ...], message: str) -> None:
    daemon = Daemon(*ON_TWO, "--ray-address", cluster.address, *words, "--startup-timeout", "1")
    line = daemon.failure()
    assert message in line
    assert "the cluster has" in line
    assert "(--startup-timeout)" in line
    assert not cluster.places()


def test_no_cluster_at_the_address() -> None:
    line = Daemon(*ON_TWO, "--ray-address", "127.0.0.1:1").failure()
    assert line.startswith("penstock: error: --ray-address: no Ray cluster at 127.0.0.1:1: ")


def test_a_job_that_is_stopped_leaves_nothing(demo: Daemon, cluster: RayCluster) -> None:
    serve = (sys.executable, "-P", "-m", "server", "serve", "--port", "0", *ON_TWO)
    cluster.run_job("submit", "--no-wait", "--submission-id", "served", "--", *serve)
    jobs = JobSubmissionClient(cluster.dashboard)
    wait_until(lambda: READY.search(jobs.get_job_logs("served")))
    (url,) = READY.findall(jobs.get_job_logs("served"))
    answer = httpx.post(f"{url}/v1/completions", json=BODIES[0])
    assert [[choice["text"] for choice in answer.json()["choices"]]] == texts(demo, BODIES[:1])
    pids = processes_of_nodes()
    assert len(pids) >= 7  # the supervisor, its engine, two workers, an API process, two actors
    cluster.run_job("stop", "served")
    wait_until(lambda: none_alive(pids) and not cluster.places())
    assert jobs.get_job_status("served") == "STOPPED"


def kill_actor(_: RayCluster) -> None:
    os.kill(actor_of_node(), signal.SIGKILL)


# The last one: the cluster stays without its node.
@pytest.mark.parametrize(
    "lose", [pytest.param(kill_actor, marks=pytest.mark.long), RayCluster.remove_node]
)
def test_a_lost_node_ends_all(cluster: RayCluster, lose: Callable[[RayCluster], None]) -> None:
    with serving(cluster) as daemon:
        asking = Asking(daemon, "/v1/completions", LONG)
        wait_until(lambda: metric(daemon.url, "penstock_engine_running_rows") == 1)
        pids, lost = processes_of_nodes(), time.monotonic()
        lose(cluster)
        answer = asking.answer()
        assert answer is not None
        assert answer.json()["error"]["code"] == "engine_dead"
        gone = seconds_until(lambda: none_alive(pids), lost)
        print(f"gone after {gone:.1f} s")
        assert gone < GONE + MARGIN
        assert daemon.exit_code() == 1
        assert said(daemon, "node 1", "is lost")
