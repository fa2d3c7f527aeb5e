"""Pipelines of worker processes on GPUs: the text of a reference on the CPU, over every transport,
and what remains of them when one is killed."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import GenerateStream
from engine_core.client.trace_client import trace_engines
from engine_core.messages import RowOutput, SamplingParams, TracedStep
from engine_core.refusal import RefusalError
from server.daemon.parts import LOOPBACK, worker_parts
from server.daemon.run import RunningEngine, running_model, running_parts
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits, ServedModel
from tests.gpu.conftest import OVERLAPPING, memory_given_back, run
from tests.workers.equivalence import Lesson, Lessons
from tests.workers.inline_engine import Sampled
from tests.workers.teacher import Comparison
from workers.contract.token_sampling import GREEDY

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TWO_GPUS, FOUR_GPUS = (
    pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"needs {count} CUDA devices")
    for count in (2, 4)
)

SAME_GPU, BOTH_GPUS, SECOND_GPU = ("cuda:0", "cuda:0"), ("cuda:0", "cuda:1"), ("cuda:1",)
ALL_GPUS = tuple(f"cuda:{gpu}" for gpu in range(4))
WIDTH = 8
CLOCKS_ERROR_US = 100


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return Lessons(tmp_path_factory.mktemp("models"), count=64, longest=300, tokens=24)("demo")


def served(
    lesson: Lesson, directory: Path, devices: tuple[str, ...], **changes: Any
) -> ServedModel:
    """A model whose stages run on these devices: the server gives each stage its own, the engine
    takes them as they are."""
    own = {"dtype": "float32", "attention_backend": "triton", "block_size": 16, "max_running": 48}
    common = {"device": "cuda", "log_level": "info", "max_step_tokens": 512, "memory_share": 0.4}
    options = EngineOptions(**own | common)
    limits = Limits(max_queue_seconds=0)
    model = set_up_model("model", lesson.folder, options, limits, f"{directory}/0")
    shares = model.execution.memory_shares * len(devices)
    changes |= {"devices": devices, "memory_shares": shares}
    execution = msgspec.structs.replace(model.execution, **changes)
    engine = msgspec.structs.replace(model.engine, execution=execution)
    return msgspec.structs.replace(model, engine=engine)


@asynccontextmanager
async def running(
    lesson: Lesson, directory: Path, devices: tuple[str, ...], **changes: Any
) -> AsyncGenerator[RunningEngine]:
    """Such a model's engine. The workers of other hosts are started here, too."""
    model = served(lesson, directory, devices, **changes)
    execution = model.execution
    others = [
        part
        for node in sorted(set(execution.nodes) - {0})
        for part in worker_parts(execution, directory / "other", node, LOOPBACK)
    ]
    async with running_parts(others), running_model(model, directory) as started:
        yield started


async def compared(client: EngineClient, lesson: Lesson) -> Comparison:
    comparison = Comparison(lesson.references, forced=False)
    count = len(lesson.references[0].tokens)
    params = SamplingParams(sampling=GREEDY, max_tokens=count, ignore_eos=True, logprobs=WIDTH)

    async def one(number: int, prompt: list[int]) -> None:
        index = 0
        with await client.generate(params, ids=[np.array(prompt, np.int32).tobytes()]) as stream:
            while news := await stream.next():
                for output in news:
                    comparison(sampled(output, number, index))
                    index += 1
        assert index == count

    async with asyncio.TaskGroup() as group:
        for number, prompt in enumerate(lesson.prompts):
            group.create_task(one(number, prompt))
    return comparison


def sampled(output: RowOutput, prompt: int, index: int) -> Sampled:
    assert output.sampled is not None
    ids = np.frombuffer(output.sampled.top_ids, np.int32)
    best = np.frombuffer(output.sampled.top, np.float32)
    chosen = np.frombuffer(output.sampled.chosen, np.float32)
    all_ids, all_logprobs = np.append(output.token, ids), np.append(chosen, best)
    return Sampled(prompt, index, output.token, all_ids, all_logprobs)


def check(lesson: Lesson, directory: Path, devices: tuple[str, ...], **changes: Any) -> None:
    async def ask() -> None:
        async with running(lesson, directory, devices, **changes) as engine:
            comparison = await compared(engine.client, lesson)
            print(f"{devices} {changes}: {comparison}")
            comparison.check()

    run(ask(), 180)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_two_stages_on_one_gpu(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_ahead: int
) -> None:
    monkeypatch.setenv(OVERLAPPING, "1")
    check(lesson, tmp_path, SAME_GPU, steps_ahead=steps_ahead)


@TWO_GPUS
def test_a_stage_on_the_second_gpu(lesson: Lesson, tmp_path: Path) -> None:
    check(lesson, tmp_path, SECOND_GPU)


@pytest.mark.parametrize("transport", ["peer-memory", "nccl"])
@pytest.mark.parametrize(
    "devices",
    [pytest.param(BOTH_GPUS, marks=TWO_GPUS), pytest.param(ALL_GPUS, marks=FOUR_GPUS)],
    ids=["two GPUs", "four GPUs"],
)
def test_a_stage_on_each_gpu(
    lesson: Lesson, tmp_path: Path, devices: tuple[str, ...], transport: str
) -> None:
    check(lesson, tmp_path, devices, transport=transport)


@pytest.mark.parametrize(
    "devices",
    [
        SAME_GPU,
        pytest.param(BOTH_GPUS, marks=TWO_GPUS),
        pytest.param(ALL_GPUS, marks=FOUR_GPUS),
    ],
    ids=["one GPU", "two GPUs", "four GPUs"],
)
def test_the_stages_times_line_up(
    lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]
) -> None:
    """What a stage had computed comes to the next one later, by clocks that were compared."""
    if devices == SAME_GPU:
        monkeypatch.setenv(OVERLAPPING, "1")

    async def ask() -> list[TracedStep]:
        async with running(lesson, tmp_path, devices) as engine:
            endpoints = {"model": engine.model.engine.client_endpoint}
            trace = asyncio.create_task(asyncio.to_thread(trace_engines, endpoints, 4.0))
            await asyncio.sleep(0.2)
            await compared(engine.client, lesson)
            return (await trace)["model"]

    steps = asyncio.run(asyncio.wait_for(ask(), 180))
    assert len(steps) >= len(lesson.references[0].tokens)
    for times in zip(*(step.times for step in steps), strict=True):
        assert all(t.busy_us > 0 and t.idle_us >= 0 and t.wait_us >= 0 for t in times)
        gaps = [after.start_us - before.end_us for before, after in pairwise(times)]
        assert min(gaps) >= -CLOCKS_ERROR_US
    for first, second in (pair for step in steps for pair in pairwise(step.times)):
        computed = first.end_us - first.transfer_us
        assert second.start_us + second.wait_us >= computed - CLOCKS_ERROR_US


@pytest.mark.parametrize(
    ("devices", "killed"),
    [
        *((SAME_GPU, stage) for stage in range(2)),
        *(pytest.param(ALL_GPUS, stage, marks=FOUR_GPUS) for stage in range(4)),
    ],
)
def test_a_killed_stage_ends_what_runs_and_leaves_nothing(
    lesson: Lesson,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[str, ...],
    killed: int,
) -> None:
    if devices == SAME_GPU:
        monkeypatch.setenv(OVERLAPPING, "1")

    async def ask() -> None:
        async with running(lesson, tmp_path, devices) as engine:
            params = SamplingParams(sampling=GREEDY, max_tokens=200, ignore_eos=True)
            prompt = np.array(lesson.prompts[0], np.int32).tobytes()
            with await engine.client.generate(params, ids=[prompt]) as stream:
                assert await stream.next()
                since = time.monotonic()
                os.kill(worker_pid(tmp_path, killed), signal.SIGKILL)
                with pytest.raises(RefusalError) as error:
                    await read_to_the_end(stream)
            assert error.value.code == "engine_dead"
            assert time.monotonic() - since < 2

    with memory_given_back(devices):
        run(ask(), 180)
        assert worker_pids(tmp_path) == []


async def read_to_the_end(stream: GenerateStream) -> None:
    while await stream.next():
        pass


def worker_pid(directory: Path, stage: int) -> int:
    """The oldest, beside which may be its spare."""
    (pid,) = worker_pids(directory, f"worker-{stage}.json", "-o")
    return pid


def worker_pids(directory: Path, file: str = "worker-", *flags: str) -> list[int]:
    command = ["pgrep", *flags, "-f", f"{directory}/0.{file}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]
