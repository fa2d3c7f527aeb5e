"""Jobs that run at once."""

import asyncio
from collections.abc import Coroutine, Sequence

from engine_core.refusal import RefusalError
from server.bench.results.measurement import BenchError
from server.first_error import first_error


async def together(jobs: Sequence[Coroutine[object, object, None]]) -> None:
    """All at once, begun in order; the first BenchError or RefusalError ends the others and is
    raised."""
    with first_error(BenchError, RefusalError):
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
