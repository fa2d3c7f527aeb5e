"""Pipelines over several hosts, which are one machine here: each has its own GPUs, and the sockets
between them are a cluster's. Within a host stages share memory; NCCL connects the hosts."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from server.daemon.run import START_SECONDS
from server.demo import GENERATOR_NAME
from tests.e2e.daemon import free_port
from tests.e2e.daemon import running as daemon
from tests.e2e.hosts.cluster import DEMO, cluster, none_alive, said, seconds_until
from tests.e2e.hosts.network import missing, network
from tests.e2e.hosts.test_losses import GONE, InFlight, worker_of
from tests.e2e.life.test_stages import texts
from tests.gpu.conftest import run
from tests.gpu.test_pipeline import TWO_GPUS, compared, running
from tests.workers.equivalence import Lesson, Lessons
from workers.contract.curve import ClusterKeys
from workers.contract.token_sampling import GREEDY

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ANSWERS, TOKENS = 8, 24


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    folder = tmp_path_factory.mktemp("models")
    return Lessons(folder, count=64, longest=300, tokens=TOKENS)("demo")


async def greedy_answers(client: EngineClient, lesson: Lesson) -> list[list[int]]:
    """One after another, so that all rows of a step are always the same."""
    params = SamplingParams(sampling=GREEDY, max_tokens=TOKENS, ignore_eos=True)
    answers: list[list[int]] = []
    for prompt in lesson.prompts[:ANSWERS]:
        tokens: list[int] = []
        with await client.generate(params, ids=[np.array(prompt, np.int32).tobytes()]) as stream:
            while news := await stream.next():
                tokens += [output.token for output in news]
        answers.append(tokens)
    return answers


@pytest.mark.parametrize(
    ("nodes", "variables"),
    [
        ((0, 1), {}),
        # No way between two hosts but a network: here that of the loopback interface.
        ((0, 1), {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
        ((0, 0, 1, 1), {}),
        ((0, 1, 1, 2), {}),
    ],
    ids=["two hosts", "over sockets", "two hosts of two", "three hosts"],
)
def test_hosts_give_what_one_gives(
    lesson: Lesson,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[int, ...],
    variables: dict[str, str],
) -> None:
    if torch.cuda.device_count() < len(nodes):
        pytest.skip(f"needs {len(nodes)} CUDA devices")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    devices = tuple(f"cuda:{stage}" for stage in range(len(nodes)))
    cluster = {
        "nodes": nodes,
        "cluster_keys": ClusterKeys.of(b"the secret of two hosts"),
        "worker_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "token_endpoint": f"tcp://127.0.0.1:{free_port()}",
    }
    answers: list[list[list[int]]] = []

    async def ask() -> None:
        for name, changes in {"one": {"transport": "peer-memory"}, "several": cluster}.items():
            directory = tmp_path / name
            directory.mkdir()
            async with running(lesson, directory, devices, **changes) as engine:
                answers.append(await greedy_answers(engine.client, lesson))
                comparison = await compared(engine.client, lesson)
                print(f"{name} {nodes}: {comparison}")
                comparison.check()

    run(ask(), 300)
    of_one, of_several = answers
    assert len(set(map(tuple, of_one))) == ANSWERS
    assert of_several == of_one


@TWO_GPUS
def test_nodes_on_networks_of_their_own_serve_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := missing():
        pytest.skip(why)
    exact = ("--device", "cuda", "--dtype", "float32", "--attention-backend", "triton")
    with daemon(DEMO, "--served-model-name", GENERATOR_NAME, *exact) as one:
        expected = texts(one)
    with network(2) as net, cluster(net, tmp_path) as programs:

        def be_host(number: int) -> None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(number))
            monkeypatch.setenv("NCCL_HOSTID", f"host {number}")

        be_host(0)
        master = programs.serve(*exact, nodes=2, stages=2)
        be_host(1)
        node = programs.join(1)
        master.wait_ready(START_SECONDS)
        assert programs.texts(master) == expected

        requests, pids = InFlight(programs, master), programs.pids()
        killed = time.monotonic()
        os.kill(worker_of(node), signal.SIGKILL)
        requests.assert_failed()
        gone = seconds_until(lambda: none_alive(pids), killed)
        print(f"gone after {gone:.1f} s")
        assert gone < GONE
        assert master.exit_code() == 1
        assert said(master, "node 1", net.hosts[1].address, "is lost")
