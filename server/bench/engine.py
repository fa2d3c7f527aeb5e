"""An engine and its workers as real processes, without an HTTP server."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_core.client.engine_client import EngineClient
from server.bench.processes import daemon_of, running_parts
from server.models.model_setup import EngineOptions, EngineSeat, set_up_model
from server.settings.server_config import Limits, ServedModel

START_SECONDS = 900
"""For weights, compiled kernels and captured graphs."""


@dataclass(frozen=True)
class RunningEngine:
    """A ready engine."""

    client: EngineClient
    model: ServedModel


@asynccontextmanager
async def running_engine(
    folder: Path, options: EngineOptions | None = None
) -> AsyncGenerator[RunningEngine]:
    """The engine of the model in `folder`, until the block ends.

    Raises BenchError if it does not come up, and what `set_up_model` raises.
    """
    options = options or EngineOptions(log_level="warning")
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        seat = EngineSeat(prefix=f"{directory}/0", num_engines=1)
        # All of a case's work is submitted at once, and none of it is refused for its wait.
        limits = Limits(max_queue_seconds=0)
        model = set_up_model("model", folder, options, limits, seat)
        parts = [part for part in daemon_of([model], Path(directory)) if part.role != "api"]
        with running_parts(parts) as children:
            client = EngineClient(model.engine.client_endpoint)
            try:
                await client.start()
                await children.until(client.wait_ready(), START_SECONDS)
                yield RunningEngine(client, model)
            finally:
                client.close()
