"""The client of an engine for lines: their jobs wait here for room, and are of the batch band."""

import asyncio
import math
from typing import Any

from engine_core.client.encode_calls import EncodeCall
from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import GenerateStream
from engine_core.config import EngineConfig
from engine_core.messages import Accepted, EncodeJob, GenerateJob
from server.batches.room import Room

ID_BYTES = 4
"""Token ids are int32."""


class BatchClient(EngineClient):
    """Sends a line's first job once there is room for it, which is held until the line is over."""

    def __init__(self, engine: EngineConfig, share: float) -> None:
        """Uses at most this `share` of what the engine takes at once."""
        super().__init__(engine.client_endpoint)
        self.batch = True
        self.room = Room(
            math.ceil(engine.max_pending_rows * share), math.ceil(engine.max_pending_tokens * share)
        )
        self._holders: set[asyncio.Task[Any]] = set()

    async def hold(self, task: asyncio.Task[Any], rows: int, tokens: int) -> None:
        """Wait for room, and hold it until the task ends."""
        if task not in self._holders:
            self._holders.add(task)
            task.add_done_callback(self._holders.discard)
            give = await self.room.take(rows, tokens)
            task.add_done_callback(lambda _: give())

    async def _submit(
        self,
        job: int,
        waiting: GenerateStream | EncodeCall[Any, Any],
        message: GenerateJob | EncodeJob,
    ) -> Accepted:
        task = asyncio.current_task()
        assert task is not None, "jobs are submitted in tasks"
        await self.hold(task, *_size(message))
        return await super()._submit(job, waiting, message)


def _size(message: GenerateJob | EncodeJob) -> tuple[int, int]:
    """Its rows, and the most tokens that they may have: a text has at most one a byte."""
    rows = len(message.texts) + len(message.ids)
    tokens = sum(len(text.encode()) for text in message.texts)
    tokens += sum(map(len, message.ids)) // ID_BYTES
    if isinstance(message, GenerateJob):
        return rows * message.n, tokens * message.n
    query = message.query or ""
    queries = [query] * rows if isinstance(query, str) else query
    return rows, tokens + sum(len(each.encode()) for each in queries)
