"""An engine with a worker, as processes, after thousands of requests (on the GPU:
tests/gpu/test_engine.py)."""

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import server.demo
from engine_core.client.engine_client import EngineClient
from engine_core.messages import SamplingParams
from server.daemon.run import running_engine
from server.models.model_setup import EngineOptions
from tests.e2e.endurance import Guests, footprint, until_idle

DEMO = Path(server.demo.__file__).parent / "generator"
OPTIONS = EngineOptions(device="cpu", threads=1, kv_cache_memory=24 << 20, log_level="warning")
ENGINE_GROWTH = 4 << 20
"""Bytes. The worker's are the GPU's to watch: on a CPU they depend on the sizes of its steps."""

WORKER_GROWTH = 80 << 20
"""Bytes, after 75 lengths of prompt. 60 more add 123 MiB if oneDNN may keep what it likes."""


@pytest.mark.long
async def test_requests_that_finish_or_leave_keep_nothing() -> None:
    before, after = 400, 800
    async with running_engine(DEMO, OPTIONS) as engine:
        guests = Guests(engine.client, engine.model.execution.model.vocab_size)
        await guests.serve(before)
        await until_idle(engine.client)
        earlier = footprint()
        await guests.serve(after)
        await until_idle(engine.client)
        assert guests.finished + guests.left == before + after
        assert guests.left > (before + after) / 20
        assert footprint().growth_since(earlier)["engine_core"] < ENGINE_GROWTH


async def send_prompts(client: EngineClient, lengths: Iterable[int], vocab_size: int) -> None:
    """One after another, so that each is a step of its own, and that step is as long."""
    draw = random.Random(5)
    for length in lengths:
        ids = np.array(draw.choices(range(vocab_size), k=length), np.int32).tobytes()
        with await client.generate(SamplingParams(max_tokens=1), ids=[ids]) as stream:
            while await stream.next():
                pass


@pytest.mark.long
async def test_prompts_of_new_lengths_do_not_make_a_worker_grow() -> None:
    async with running_engine(DEMO, OPTIONS) as engine:
        vocab_size = engine.model.execution.model.vocab_size
        await send_prompts(engine.client, range(5, 155, 2), vocab_size)
        earlier = footprint()
        await send_prompts(engine.client, range(6, 126, 2), vocab_size)
        assert footprint().growth_since(earlier)["workers"] < WORKER_GROWTH
