"""An engine and its workers as real processes, without an HTTP server."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import daemon_of, running_part
from engine_core.client import EngineClient
from server.config import Limits, ServedModel
from server.model_setup import EngineOptions, EngineSeat, set_up_model

_START_SECONDS = 120


@dataclass(frozen=True)
class RunningEngine:
    """A ready engine; `pids` are the engine core's first, then its stages'."""

    client: EngineClient
    model: ServedModel
    pids: list[int]


@asynccontextmanager
async def running_engine(
    folder: Path, options: EngineOptions | None = None
) -> AsyncGenerator[RunningEngine]:
    """Start the engine of the model in `folder`; ends every process by pid."""
    options = options or EngineOptions(log_level="warning")
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory, ExitStack() as running:
        seat = EngineSeat(prefix=f"{directory}/0", num_engines=1)
        model = set_up_model("model", folder, options, Limits(), seat)
        parts = [part for part in daemon_of([model], Path(directory)) if part.role != "api"]
        # The engine core is started last, so that it ends first: a stage that went before it
        # would be an error to tell.
        pids = [running.enter_context(running_part(part)).pid for part in reversed(parts)][::-1]
        client = EngineClient(model.engine.client_endpoint)
        try:
            await client.start()
            await asyncio.wait_for(client.wait_ready(), _START_SECONDS)
            yield RunningEngine(client, model, pids)
        finally:
            client.close()
