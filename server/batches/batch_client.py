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

_ID_BYTES = 4


class BatchClient(EngineClient):
    """Sends a line's first job once there is room for it, which is held until the line is over."""

    def __init__(self, engine: EngineConfig, share: float) -> None:
        """Uses at most this `share` of what the engine takes at once."""
        super().__init__(engine.client_endpoint)
        self.batch = True
        self._room = Room(
            math.ceil(engine.max_pending_rows * share), math.ceil(engine.max_pending_tokens * share)
        )
        self._holders: set[asyncio.Task[Any]] = set()

    async def _submit(
        self,
        job: int,
        waiting: GenerateStream | EncodeCall[Any, Any],
        message: GenerateJob | EncodeJob,
    ) -> Accepted:
        line = asyncio.current_task()
        assert line is not None, "jobs are submitted in tasks"
        if line in self._holders:
            return await super()._submit(job, waiting, message)
        self._holders.add(line)
        line.add_done_callback(self._holders.discard)
        rows, tokens = _size(message)
        keep = await self._room.take(rows, tokens)
        line.add_done_callback(lambda _: keep(0, 0))
        accepted = await super()._submit(job, waiting, message)
        sequences = message.n if isinstance(message, GenerateJob) else 1
        keep(rows, sum(accepted.prompt_tokens) * sequences)
        return accepted


def _size(message: GenerateJob | EncodeJob) -> tuple[int, int]:
    """Its rows, and the most tokens that they may have: a text has at most one a byte."""
    rows = len(message.texts) + len(message.ids)
    tokens = sum(len(text.encode()) for text in message.texts)
    tokens += sum(map(len, message.ids)) // _ID_BYTES
    if isinstance(message, GenerateJob):
        return rows * message.n, tokens * message.n
    query = message.query or ""
    queries = [query] * rows if isinstance(query, str) else query
    return rows, tokens + sum(len(each.encode()) for each in queries)
