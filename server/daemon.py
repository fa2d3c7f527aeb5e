"""One daemon, from a command to an exit code: configuration, socket, private folder, processes."""

import asyncio
import http.client
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine_core.tokenizer import TokenizerError
from engine_core.workflows import UnknownArchitectureError
from server.config import Limits, ServedModel, ServerConfig
from server.demo import DemoModelMissingError, demo_models
from server.devices import DeviceError
from server.model_setup import EngineOptions, EngineSeat, SetupError, set_up_model
from server.model_source import ModelSourceError, model_folder
from server.processes import daemon_parts
from server.supervisor import Supervisor, Timing
from server.welcome import describe, welcome
from workers.model_config import ModelConfigError

_BACKLOG = 2048
_MAX_SOCKET_PATH = 107
"""Of a Unix socket's name on Linux, in bytes."""
_LONGEST_NAME = len("/99.workers")
_PROBE_TIMEOUT_S = 2.0

_log = logging.getLogger("penstock")


class StartError(Exception):
    """The daemon cannot start on this machine as asked; one line says why."""


START_ERRORS = (
    StartError,
    DemoModelMissingError,
    DeviceError,
    ModelConfigError,
    ModelSourceError,
    SetupError,
    TokenizerError,
    UnknownArchitectureError,
)
"""Everything that is found before a process starts; each message is one line."""


class ServeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `names` is empty or has one entry for each model; times in seconds."""

    models: tuple[str, ...]
    names: tuple[str, ...]
    host: str
    port: int
    api_workers: int
    api_key: str | None
    drain_timeout: float
    startup_timeout: float
    log_level: str
    limits: Limits
    engine: EngineOptions


def serve(command: ServeCommand) -> int:
    """Serve until stopped; returns the exit code. Raises one of START_ERRORS before any process
    is started."""
    _log_to_stderr(command.log_level)
    with _listening(command.host, command.port) as listener, _private_folder() as folder:
        port: int = listener.getsockname()[1]
        config = ServerConfig(
            host=command.host,
            port=port,
            api_workers=command.api_workers,
            api_key=command.api_key,
            drain_timeout=command.drain_timeout,
            log_level=command.log_level,
            limits=command.limits,
            models=_models(command, folder),
        )
        for model in config.models:
            _log.info("starting %s", describe(model))
        return asyncio.run(_supervise(command, config, listener, folder))


async def _supervise(
    command: ServeCommand, config: ServerConfig, listener: socket.socket, folder: Path
) -> int:
    def show_welcome(seconds: float) -> None:
        print(welcome(config, seconds), file=sys.stderr, flush=True)

    supervisor = Supervisor(
        daemon_parts(config, listener.fileno(), folder),
        Timing(startup_timeout=command.startup_timeout, drain_timeout=command.drain_timeout),
        is_ready=lambda: asyncio.to_thread(_is_ready, config),
        # The API processes alone hold it from then on: a connection must not wait in the queue of
        # a socket that nobody will accept from.
        on_started=listener.close,
        on_ready=show_welcome,
    )
    return await supervisor.run()


def _models(command: ServeCommand, folder: Path) -> tuple[ServedModel, ...]:
    """Raises SetupError for a name that is given twice, and what `set_up_model` raises."""
    if command.models:
        folders = [model_folder(source, command.engine.load_format) for source in command.models]
        names = command.names or tuple(_default_name(source) for source in command.models)
    else:
        demo = demo_models()
        folders, names = list(demo.values()), tuple(demo)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SetupError(f"two models are called {twice}: give each a --served-model-name")
    return tuple(
        set_up_model(
            name,
            path,
            command.engine,
            command.limits,
            EngineSeat(prefix=str(folder / str(index)), num_engines=len(names)),
        )
        for index, (name, path) in enumerate(zip(names, folders, strict=True))
    )


def _default_name(source: str) -> str:
    """A folder's own name; a hub id as it is."""
    path = Path(source).expanduser()
    return path.resolve().name if path.is_dir() else source


@contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    """A socket that listens. Raises StartError if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise StartError(f"cannot listen on {host}: {error.strerror}") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StartError(f"cannot listen on {host}:{port}: {reason}") from None
    with listener:
        yield listener


@contextmanager
def _private_folder() -> Generator[Path]:
    """A folder (0700) for the daemon's sockets and its children's configurations.

    Raises StartError if the names of its sockets would be too long.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    try:
        if len(str(folder)) + _LONGEST_NAME > _MAX_SOCKET_PATH:
            raise StartError(f"{folder.parent} is too long a path for sockets; set TMPDIR")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ready(config: ServerConfig) -> bool:
    """Whether the daemon's own address says that it is ready."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared, not bound)
    host = everywhere.get(config.host, config.host)
    connection = http.client.HTTPConnection(host, config.port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class _Formatter(logging.Formatter):
    """Progress with the time; errors as any command-line program says them."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.ERROR:
            return f"penstock: error: {record.getMessage()}"
        return super().format(record)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
