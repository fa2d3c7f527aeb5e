"""A whole daemon for a measurement: engine, workers and API processes on a free port."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from server.bench.engine import START_SECONDS
from server.bench.http_client import Address, HTTPClient
from server.bench.processes import daemon_of, running_parts
from server.models.model_setup import EngineOptions, EngineSeat, set_up_model
from server.settings.server_config import Limits, ServedModel

_BACKLOG = 2048
_POLL_SECONDS = 0.1
_OK = 200


@asynccontextmanager
async def running_daemon(
    name: str, folder: Path, options: EngineOptions, api_workers: int
) -> AsyncGenerator[tuple[Address, ServedModel]]:
    """A daemon that serves the model in `folder` as `name`, until the block ends.

    Raises BenchError if it does not come up, and what `set_up_model` raises.
    """
    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as directory,
        socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener,
    ):
        seat = EngineSeat(prefix=f"{directory}/0", num_engines=1)
        model = set_up_model(name, folder, options, Limits(), seat)
        parts = daemon_of([model], Path(directory), listener.fileno(), api_workers)
        with running_parts(parts) as children:
            address = Address("127.0.0.1", listener.getsockname()[1])
            # A connection must not wait in the queue of a socket that nobody here accepts from.
            listener.close()
            await children.until(_ready(address), START_SECONDS)
            yield address, model


async def _ready(address: Address) -> None:
    client = HTTPClient(address)
    request = address.request("GET", "/health/ready")
    while True:
        try:
            if (await client.exchange(request)).status == _OK:
                client.close()
                return
        except OSError:
            pass  # nobody accepts yet
        await asyncio.sleep(_POLL_SECONDS)
