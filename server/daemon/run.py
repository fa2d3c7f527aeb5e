"""Parts of the daemon without its supervisor: an engine and its workers, without HTTP."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from engine_core.client.engine_client import EngineClient
from server.daemon.daemon import StartError
from server.daemon.parts import Part, RunningPart, engine_parts
from server.daemon.running_daemons import announce, private_folder
from server.models.model_setup import EngineOptions, set_up_model
from server.settings import defaults
from server.settings.server_config import ServedModel
from server.settings.settings import Limits

START_SECONDS = 900
"""For weights, compiled kernels and captured graphs."""

_START_ORDER = ("worker", "engine", "api")
"""Parts end in the reverse order: a worker that ended before its engine core, or an engine core
before its API process, would be an error that the other one logs."""

_ResultT = TypeVar("_ResultT")


class RunningParts(NamedTuple):
    """Processes that this one has started."""

    running: list[RunningPart]

    async def until(self, ready: Coroutine[object, object, _ResultT], seconds: float) -> _ResultT:
        """The result of `ready`. Raises StartError after `seconds`, or once a process has ended."""
        waiting = asyncio.ensure_future(ready)
        exits = [each.exit for each in self.running]
        try:
            await asyncio.wait(
                (waiting, *exits), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()
        for each in self.running:
            if each.exit.done():
                raise StartError(f"the {each.part.title} {each.end()}")
        raise StartError(f"not ready after {seconds:g} s")


@asynccontextmanager
async def running_parts(parts: Sequence[Part]) -> AsyncGenerator[RunningParts]:
    """All of `parts`, until the block ends. Raises OSError."""
    running: list[RunningPart] = []
    try:
        for part in sorted(parts, key=lambda part: _START_ORDER.index(part.role)):
            # Not a comprehension: if one cannot be started, those before it are in the list.
            running.append(RunningPart(part))  # noqa: PERF401
        yield RunningParts(running)
    finally:
        for each in reversed(running):
            each.signal(signal.SIGKILL)
            await asyncio.wait([each.exit])


class RunningEngine(NamedTuple):
    """An engine that is ready."""

    client: EngineClient
    model: ServedModel


@asynccontextmanager
async def running_engine(
    folder: Path, options: EngineOptions | None = None
) -> AsyncGenerator[RunningEngine]:
    """The engine of the model in `folder`, until the block ends.

    Raises StartError if it does not become ready, and what `set_up_model` raises.
    """
    options = options or EngineOptions(log_level="warning")
    # Whoever submits all work at once expects it to wait. What large jobs leave to other clients
    # comes on top: there are none.
    limits = Limits(max_queue_seconds=0, max_sequences=2 * Limits().max_sequences)
    max_tokens = 2 * defaults.MAX_PENDING_TOKENS
    with private_folder() as (directory, announcement):
        served = set_up_model("model", folder, options, limits, f"{directory}/0")
        engine_config = msgspec.structs.replace(served.engine, max_pending_tokens=max_tokens)
        model = msgspec.structs.replace(served, engine=engine_config)
        async with running_model(model, directory) as engine:
            announce(announcement, [model])
            yield engine


@asynccontextmanager
async def running_model(model: ServedModel, directory: Path) -> AsyncGenerator[RunningEngine]:
    """The engine of a model whose sockets are in `directory`, until the block ends.

    Raises StartError if it does not become ready.
    """
    async with running_parts(engine_parts([model], directory)) as parts:
        client = EngineClient(model.engine.client_endpoint)
        try:
            await client.start()
            await parts.until(client.wait_ready(), START_SECONDS)
            yield RunningEngine(client, model)
        finally:
            client.close()
