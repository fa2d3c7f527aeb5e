"""An engine and its workers as real processes, without an HTTP server."""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_core.client import EngineClient
from server.config import Limits, ServedModel, ServerConfig
from server.model_setup import EngineOptions, EngineSeat, set_up_model
from server.processes import daemon_parts

_NO_LISTENER = -1


@dataclass(frozen=True)
class RunningEngine:
    """A ready engine; `processes` are the engine core first, then its stages."""

    client: EngineClient
    model: ServedModel
    processes: list[subprocess.Popen[bytes]]


@asynccontextmanager
async def running_engine(
    folder: Path, options: EngineOptions | None = None
) -> AsyncGenerator[RunningEngine]:
    """Start the engine of the model in `folder`; ends every process by pid."""
    options = options or EngineOptions(log_level="warning")
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        model = set_up_model(
            "model", folder, options, Limits(), EngineSeat(prefix=f"{directory}/0", num_engines=1)
        )
        config = ServerConfig(
            host="127.0.0.1",
            port=0,
            api_workers=1,
            api_key=None,
            drain_timeout=1.0,
            log_level="warning",
            limits=Limits(),
            models=(model,),
        )
        parts = daemon_parts(config, _NO_LISTENER, Path(directory))
        processes = [
            subprocess.Popen(  # noqa: ASYNC220 (nothing else runs on the loop yet)
                part.command, env=part.environment, stdin=subprocess.PIPE
            )
            for part in parts
            if part.role != "api"
        ]
        client = EngineClient(model.engine.client_endpoint)
        try:
            await client.start()
            await asyncio.wait_for(client.wait_ready(), timeout=120)
            yield RunningEngine(client, model, processes)
        finally:
            client.close()
            for process in processes:
                process.kill()
                process.communicate()
