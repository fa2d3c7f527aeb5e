"""API processes before engines that compute nothing."""

import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.processes import running_command, running_module
from engine_core.tokenization.tokenizer import Tokenizer
from server.daemon.parts import daemon_parts
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits, ServedModel, ServerConfig
from workers.contract.config import Task

TEXT = "The gate opens, water falls, and the turbine turns; the river goes on below it."
"""What the generators say, over and over."""

_START_SECONDS = 30
_BACKLOG = 2048


class Endpoint(msgspec.Struct, frozen=True):
    """A fake engine: the folder of the model that it passes for, its task, ms between a row's
    tokens (0: all at once)."""

    model: Path
    task: Task
    step_ms: float = 0


class APIProcesses(msgspec.Struct, frozen=True):
    """API processes that are ready: their address and process ids."""

    port: int
    pids: list[int]

    @property
    def url(self) -> str:
        """Where they listen."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_api_processes(
    endpoints: Mapping[str, Endpoint], count: int = 1
) -> Generator[APIProcesses]:
    """So many API processes before one fake engine for each of `endpoints`, by its name in
    requests, until the block ends. Raises TimeoutError if they do not become ready."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as folder,
        socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener,
        ExitStack() as running,
    ):
        models = [_served(name, each.model, folder) for name, each in endpoints.items()]
        for model in models:
            running.enter_context(_fake_engine(model, endpoints[model.name], count))
        config = ServerConfig(
            host="127.0.0.1", api_workers=count, log_level="warning", models=tuple(models)
        )
        parts = daemon_parts(config, listener.fileno(), Path(folder))
        processes = [
            running.enter_context(
                running_command([*api.command, "0"], api.environment, pass_fds=(listener.fileno(),))
            )
            for api in parts
            if api.role == "api"
        ]
        started = APIProcesses(listener.getsockname()[1], [process.pid for process in processes])
        # A connection must not wait in the queue of a socket that nobody here accepts from.
        listener.close()
        _wait_ready(started.url)
        yield started


def _served(name: str, model: Path, folder: str) -> ServedModel:
    options = EngineOptions(device="cpu", load_format="dummy")
    return set_up_model(name, model, options, Limits(), f"{folder}/{name}")


def _fake_engine(model: ServedModel, endpoint: Endpoint, clients: int):
    (ids,) = Tokenizer.load(Path(model.path)).encode([TEXT], add_special_tokens=False)
    tokens = np.frombuffer(ids, np.int32).tolist()
    arguments = (model.engine.client_endpoint, endpoint.task, clients, endpoint.step_ms, *tokens)
    return running_module("benchmarks.http.fake_engine", *map(str, arguments))


def _wait_ready(url: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=_START_SECONDS):
                return
        except urllib.error.URLError:
            time.sleep(0.05)
    raise TimeoutError(f"the API processes are not ready after {_START_SECONDS} s")
