"""An engine with a worker, as processes, after thousands of requests (on the GPU:
tests/gpu/test_engine.py)."""

import asyncio
from pathlib import Path

import server.demo
from server.daemon.run import running_engine
from server.models.model_setup import EngineOptions
from tests.e2e.endurance import Guests, footprint, until_idle

DEMO = Path(server.demo.__file__).parent / "generator"
OPTIONS = EngineOptions(device="cpu", threads=1, kv_cache_memory=24 << 20, log_level="warning")
ENGINE_GROWTH = 4 << 20
"""Bytes. The worker's are the GPU's to watch: on a CPU oneDNN keeps a primitive for each number of
rows that it has seen, up to a thousand."""


async def serve(before: int, after: int) -> None:
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


def test_requests_that_finish_or_leave_keep_nothing() -> None:
    asyncio.run(serve(400, 800))
