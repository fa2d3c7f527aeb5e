"""Jobs that run at once."""

import asyncio
from collections.abc import Coroutine, Sequence

from engine_core.client.pending_jobs import EngineError
from server.bench.results.measurement import BenchError


async def together(jobs: Sequence[Coroutine[object, object, None]]) -> None:
    """All at once, begun in order; the first BenchError or EngineError ends the others and is
    raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except* (BenchError, EngineError) as errors:
        raise errors.exceptions[0] from None
