"""Pipelines over several hosts, which are one machine here: each has its own GPUs, and the sockets
between them are a cluster's. Within a host stages share memory; NCCL connects the hosts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from tests.e2e.daemon import free_port
from tests.gpu.conftest import run
from tests.gpu.test_pipeline import compared, running
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
