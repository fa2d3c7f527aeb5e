"""Stages on GPUs that are killed under many streams, which go on with the text of a reference."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine_core.client.engine_client import EngineClient
from server.daemon.parts import engine_parts
from server.daemon.supervisor import Hangup, Moments, Supervisor
from server.settings.settings import ServedModel, ServerConfig
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
    devices: tuple[str, ...],
    killed: int,
) -> None:
    if devices == SAME_GPU:
        monkeypatch.setenv(OVERLAPPING, "1")

    async def ask() -> None:
        model = served(lesson, tmp_path, devices)
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
        assert worker_pids(tmp_path) == []
