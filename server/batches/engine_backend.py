"""Lines answered by engines of this machine, through the HTTP API's handlers without a socket."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.client.pending_jobs import GenerateStream, RowsCall
from engine_core.config import EngineConfig
from engine_core.loop.admission import job_size, prompt_tokens
from engine_core.messages import EncodeJob, GenerateJob, JobMessage
from server.batches.answering import Answer, Backend, Room
from server.daemon.application import all_endpoints, create_app
from server.service.service import Registry, Service
from server.settings.api_keys import ClientKey
from server.settings.settings import ServerConfig


async def exchange(app: ASGIApp, path: str, data: bytes) -> Answer:
    """Post to an application (an `answering.Exchange`)."""
    to_read: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    answer: list[Message] = []

    async def receive() -> Message:
        if to_read:
            return to_read.pop()
        # The client never leaves: a cancelled request cancels this task.
        return await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        answer.append(message)

    size = str(len(data)).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", size)],
    }
    await app(scope, receive, send)
    start, *parts = answer
    headers = dict(start["headers"])
    request_id = headers[b"x-request-id"].decode()
    wait = headers.get(b"retry-after")
    body = b"".join(part.get("body", b"") for part in parts)
    return Answer(start["status"], request_id, body, None if wait is None else float(wait))


class BatchClient(EngineClient):
    """Sends a line's first job once there is room. The line holds that room until its end."""

    def __init__(self, engine: EngineConfig, share: float) -> None:
        super().__init__(engine.client_endpoint, returns=engine.max_restarts > 0)
        self.batch = True
        self._room = Room(
            math.ceil(engine.max_pending_rows * share), math.ceil(engine.max_pending_tokens * share)
        )
        self._holders: set[asyncio.Task[Any]] = set()

    async def _submit(self, waiting: GenerateStream | RowsCall[Any], message: JobMessage) -> None:
        line = asyncio.current_task()
        assert line is not None, "jobs are submitted in tasks"
        if line in self._holders:
            await super()._submit(waiting, message)
            return
        self._holders.add(line)
        line.add_done_callback(self._holders.discard)
        size = job_size(message)
        self.rows += size.rows  # those that wait, too, are this engine's
        try:
            keep = await self._room.take(size.rows, size.tokens)
        finally:
            self.rows -= size.rows
        line.add_done_callback(lambda _: keep(0, 0))
        await super()._submit(waiting, message)
        if isinstance(message, EncodeJob):
            return  # its texts are not tokenized yet
        sequences = message.n if isinstance(message, GenerateJob) else 1
        keep(size.rows, prompt_tokens(message, waiting.answer) * sequences)


_AT_ONCE = 16_384
_UNLIMITED = 1 << 62


class EngineBackend(Backend):
    """Answers lines whose jobs wait in the engines' clients."""

    def __init__(self, service: Service) -> None:
        app = create_app(service)
        super().__init__(partial(exchange, app), at_once=_AT_ONCE, sharing="by token")
        self.models = [model.served for model in service.registry.models]
        self._keys = service.keys

    def act_for(self, client: ClientKey) -> None:
        """Answer lines for this client from now on."""
        self._keys.anybody = client


@asynccontextmanager
async def engine_backend(config: ServerConfig, share: float = 1.0) -> AsyncGenerator[EngineBackend]:
    """Answer lines with the engines of `config`, which run or start, in `share` of their room.

    Raises RefusalError if an engine dies before it is ready.
    """
    registry = Registry.load(
        config.models,
        all_endpoints(),
        lambda engines: Engines(BatchClient(engine, share) for engine in engines),
        default_model=config.default_model,
    )
    # The clients keep to the engines' bounds, and lines wait: nothing is to be refused here.
    unlimited = msgspec.structs.replace(config, max_unread_size=_UNLIMITED, max_request_seconds=0.0)
    service = Service(unlimited, registry)
    try:
        for model in registry.models:
            model.engines.start()
        for model in registry.models:
            await model.engines.wait_ready()
        yield EngineBackend(service)
    finally:
        await registry.close()
