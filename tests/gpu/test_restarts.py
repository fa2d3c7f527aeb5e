"""Stages on GPUs, and holders of their weights, that are killed under many streams. These go on
with the text of a reference."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from server.bench.dummy_models import shape_folder
from server.daemon.parts import engine_parts
from server.daemon.supervisor import Hangup, Moments, Supervisor
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits, ServedModel, ServerConfig
from tests.gpu.conftest import OVERLAPPING, memory_given_back, run
from tests.gpu.test_pipeline import (
    ALL_GPUS,
    BOTH_GPUS,
    FOUR_GPUS,
    SAME_GPU,
    TWO_GPUS,
    compared,
    served,
    worker_pid,
    worker_pids,
)
from tests.workers.equivalence import Lesson, Lessons
from workers.contract.token_sampling import GREEDY

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TIMES = 4
"""How often each of 64 prompts is asked at the same time: 256 streams."""


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return Lessons(tmp_path_factory.mktemp("models"), count=64, longest=300, tokens=64)("demo")


@asynccontextmanager
async def supervised(model: ServedModel, directory: Path) -> AsyncGenerator[EngineClient]:
    """An engine under a supervisor, which starts lost stages again."""
    engine = msgspec.structs.replace(model.engine, max_restarts=9)
    model = msgspec.structs.replace(model, engine=engine)
    client = EngineClient(model.engine.client_endpoint, returns=True)
    client.start()

    async def until_ready() -> None:
        await client.wait_ready()

    config = ServerConfig(models=(model,), max_restarts=9)
    moments = Moments(until_ready=until_ready, on_ready=lambda _: None)
    parts = engine_parts([model], directory)
    daemon = asyncio.create_task(Supervisor(parts, config, Hangup(), moments, files={}).run())
    try:
        await client.wait_ready()
        yield client
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await daemon == 0
        client.close()


async def until(condition, seconds: float = 120.0) -> float:
    """Poll. Returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds
        await asyncio.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.parametrize("kept", [False, True], ids=["loaded", "kept"])
@pytest.mark.parametrize(
    ("devices", "killed"),
    [
        (("cuda:0",), 0),
        (SAME_GPU, 1),
        *(pytest.param(BOTH_GPUS, stage, marks=TWO_GPUS) for stage in range(2)),
        pytest.param(ALL_GPUS, 2, marks=FOUR_GPUS),
    ],
)
def test_streams_go_on_when_a_stage_is_killed(
    lesson: Lesson,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    devices: tuple[str, ...],
    killed: int,
    *,
    kept: bool,
) -> None:
    if devices == SAME_GPU:
        monkeypatch.setenv(OVERLAPPING, "1")

    async def ask() -> None:
        model = served(lesson, tmp_path, devices, keeps_weights=kept)
        async with supervised(model, tmp_path) as client:
            streams = [asyncio.create_task(compared(client, lesson)) for _ in range(TIMES)]
            for losses in (1, 2):
                await until(lambda: client.beat and client.beat.usage.running)
                os.kill(worker_pid(tmp_path, killed), signal.SIGKILL)
                await until(lambda: client.beat and not client.is_ready)
                seconds = await until(lambda: client.is_ready)
                print(f"{devices}: ready again after {seconds:.1f} s")
                assert client.beat is not None
                assert client.beat.restarts == losses
            for comparison in await asyncio.gather(*streams):
                comparison.check()

    with memory_given_back(devices):
        run(ask(), 400)
        assert worker_pids(tmp_path, "") == []
    phases = starts(capfd)
    assert len(phases) == 3 * len(devices)
    assert sum("weights mapped" in line for line in phases) == kept * 2 * len(devices)


def starts(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The line of each worker's start, which the test's output has, too."""
    found = [line for line in capfd.readouterr().err.splitlines() if "ready after" in line]
    print("\n".join(found))
    return found


def test_streams_go_on_when_a_holder_is_killed(
    lesson: Lesson, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its memory may be gone: the stage starts as at first, and later maps the next one's."""
    devices = ("cuda:0",)

    async def ask() -> None:
        model = served(lesson, tmp_path, devices, keeps_weights=True)
        async with supervised(model, tmp_path) as client:
            streams = [asyncio.create_task(compared(client, lesson)) for _ in range(TIMES)]
            for file in ("holder-0.json", "worker-0.json"):
                await until(lambda: client.beat and client.beat.usage.running)
                (pid,) = worker_pids(tmp_path, file, "-o")
                os.kill(pid, signal.SIGKILL)
                await until(lambda: client.beat and not client.is_ready)
                await until(lambda: client.is_ready)
            for comparison in await asyncio.gather(*streams):
                comparison.check()

    with memory_given_back(devices):
        run(ask(), 400)
    assert ["weights mapped" in line for line in starts(capfd)] == [False, False, True]


@pytest.mark.timeout(600)
def test_256_streams_of_an_8b_model_go_on_soon(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first within 15 s, the last at most 6 s later. Prompts of 512 tokens, up to 256 more."""
    options = EngineOptions(
        device="cuda", load_format="dummy", log_level="info", max_running=256, max_restarts=9
    )
    folder, limits = shape_folder("llama8b"), Limits(max_queue_seconds=0)
    model = set_up_model("model", folder, options, limits, f"{tmp_path}/0")
    assert model.execution.keeps_weights
    times: list[list[float]] = [[] for _ in range(256)]
    params = SamplingParams(sampling=GREEDY, max_tokens=256, ignore_eos=True)

    async def one(client: EngineClient, number: int) -> None:
        tokens = np.random.default_rng(number).integers(2, 32_000, 512, np.int32)
        with await client.generate(params, ids=[tokens.tobytes()]) as stream:
            while await stream.next():
                times[number].append(time.monotonic())

    async def ask() -> float:
        async with supervised(model, tmp_path) as client:
            await until(lambda: len(worker_pids(tmp_path, "worker-0.json")) == 2)
            await asyncio.sleep(10)  # for the spare's imports
            streams = [asyncio.create_task(one(client, number)) for number in range(256)]
            await until(lambda: all(times))
            killed = time.monotonic()
            os.kill(worker_pid(tmp_path, 0), signal.SIGKILL)
            await asyncio.gather(*streams)
        return killed

    killed = asyncio.run(asyncio.wait_for(ask(), 500))
    phases = starts(capfd)
    # What was on its way when the stage was killed has come within a second.
    later = [[at - killed for at in own if at > killed + 1] for own in times]
    first, *_, last = sorted(own[0] for own in later if own)
    print(f"the first stream goes on after {first:.1f} s, the last after {last:.1f} s")
    assert sum(map(bool, later)) > 128
    assert "weights mapped" in phases[1]
    assert first <= 15
    assert last <= first + 6
