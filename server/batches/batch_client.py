"""The client of an engine for lines: their jobs wait here for room, and are of the batch band."""

import asyncio
import math
from typing import Any

from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import EncodeCall, GenerateStream
from engine_core.config import EngineConfig
from engine_core.loop.admission import job_size
from engine_core.messages import Accepted, EncodeJob, GenerateJob
from server.batches.room import Room


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
        self, waiting: GenerateStream | EncodeCall, message: GenerateJob | EncodeJob
    ) -> Accepted:
        line = asyncio.current_task()
        assert line is not None, "jobs are submitted in tasks"
        if line in self._holders:
            return await super()._submit(waiting, message)
        self._holders.add(line)
        line.add_done_callback(self._holders.discard)
        size = job_size(message)
        keep = await self._room.take(size.rows, size.tokens)
        line.add_done_callback(lambda _: keep(0, 0))
        accepted = await super()._submit(waiting, message)
        sequences = message.n if isinstance(message, GenerateJob) else 1
        keep(size.rows, sum(accepted.prompt_tokens) * sequences)
        return accepted
