"""What HTTP is measured against must answer as an engine does."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.http.fake_engine import VECTOR_SIZE
from benchmarks.processes import running_module
from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams

TOKENS = ("7", "8", "9")


@asynccontextmanager
async def fake_engine(folder: Path, task: str, step_ms: int) -> AsyncGenerator[EngineClient]:
    endpoint = f"ipc://{folder}/fake"
    with running_module("benchmarks.http.fake_engine", endpoint, task, "1", str(step_ms), *TOKENS):
        client = EngineClient(endpoint)
        client.start()
        await client.wait_ready()
        yield client
        client.close()


async def tokens_of(client: EngineClient, prompts: int, max_tokens: int) -> dict[int, list[int]]:
    params = SamplingParams(max_tokens=max_tokens)
    stream = await client.generate(params, ids=[bytes(8)] * prompts)
    tokens: dict[int, list[int]] = {row: [] for row in range(prompts)}
    while news := await stream.next():
        for output in news:
            tokens[output.row].append(output.token)
    return tokens


@pytest.mark.parametrize("step_ms", [0, 10])
async def test_rows_say_the_tokens_over_and_over_until_max_tokens(tmp_path, step_ms):
    async with fake_engine(tmp_path, "generate", step_ms) as client:
        started = time.monotonic()
        assert await tokens_of(client, 2, 5) == {0: [7, 8, 9, 7, 8], 1: [7, 8, 9, 7, 8]}
        assert time.monotonic() - started >= 5 * step_ms / 1000


async def test_every_text_gets_a_vector(tmp_path):
    async with fake_engine(tmp_path, "embed", 0) as client:
        encoded = await client.encode(texts=["a", "b c"])
    assert encoded.values.shape == (2, VECTOR_SIZE)
    assert encoded.prompt_tokens == [1, 1]
    assert np.linalg.norm(encoded.values[0]) > 0
