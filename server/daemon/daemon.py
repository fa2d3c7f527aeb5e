"""One daemon, from a command to an exit code: configuration, socket, private folder, processes."""

import asyncio
import http.client
import logging
import os
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from server.daemon.build_config import build_config
from server.daemon.child_commands import PROCESS_FILE, daemon_parts, write_server_config
from server.daemon.credentials import Credentials
from server.daemon.hangup import Hangup
from server.daemon.held_state import held_state
from server.daemon.running_daemons import announce, private_folder, sweep_private_folders
from server.daemon.running_part import RunningPart
from server.daemon.supervisor import Supervisor
from server.daemon.welcome import describe, welcome
from server.demo import DemoModelMissingError
from server.metrics.process_memory import DaemonProcess, write_processes
from server.models.model_source import SetupError
from server.models.served_models import MODEL_ERRORS
from server.service.open_files_limit import raise_open_files_limit, warn_of_few_open_files
from server.settings.server_config import ServerConfig
from server.settings.setting_names import SettingNames
from server.settings.settings import ServeCommand, SettingsError
from server.settings.tls import unverified_context
from workers.contract.process import TIME_FORMAT

_BACKLOG = 2048
_MAX_SOCKET_PATH = 107
"""The longest name of a Unix socket on Linux, in bytes."""
_LONGEST_NAME = len("/symm_mem-4194304")
"""The longest name of a socket in the private folder: of a worker with the highest possible PID."""
_PROBE_TIMEOUT_S = 2.0

_log = logging.getLogger("penstock")


class StartError(Exception):
    """The daemon cannot start on this machine as asked; one line says why."""


START_ERRORS = (
    *(StartError, DemoModelMissingError, SettingsError, SetupError),
    *MODEL_ERRORS,
)
"""Everything that prevents a start; each message is one line."""


def serve(command: ServeCommand, hangup: Hangup) -> int:
    """Serve until stopped; returns the exit code. Raises one of START_ERRORS before any process
    is started."""
    settings, setting_names = command.settings, command.setting_names
    _log_to_stderr(settings.log_level)
    raise_open_files_limit()
    where = _listening(settings.host, settings.port, setting_names)
    with where as listener, _socket_folder() as (folder, announcement), ExitStack() as stack:
        credentials = Credentials(command)
        port = listener.getsockname()[1]
        state = stack.enter_context(held_state(settings.state_dir, credentials.api_keys))
        decided = build_config(command, credentials, port=port, folder=folder)
        config = msgspec.structs.replace(decided, state=state)
        for model in config.models:
            _log.info("starting %s", describe(model))
        warn_of_few_open_files(config)
        with _room_for(f"write to {folder}"):
            announce(announcement, config.models)
        return asyncio.run(_supervise(config, credentials, listener, folder, hangup))


async def _supervise(
    config: ServerConfig,
    credentials: Credentials,
    listener: socket.socket,
    folder: Path,
    hangup: Hangup,
) -> int:
    def show_welcome(seconds: float) -> None:
        print(welcome(config, seconds), file=sys.stderr, flush=True)

    def reload() -> None:
        credentials.read_again()
        _rewrite(config, credentials, folder)

    def on_started(children: Sequence[RunningPart]) -> None:
        # The API processes alone hold it from then on: a connection must not wait in the queue of
        # a socket that nobody will accept from.
        listener.close()
        _write_processes(folder, children)

    with _room_for(f"write to {folder}"):
        parts = daemon_parts(config, listener.fileno(), folder)
    supervisor = Supervisor(
        parts,
        config,
        hangup,
        is_ready=lambda: asyncio.to_thread(_is_ready, config),
        on_started=on_started,
        on_ready=show_welcome,
        on_hangup=reload,
    )
    return await supervisor.run()


def _rewrite(config: ServerConfig, credentials: Credentials, folder: Path) -> None:
    """Give the API processes other credentials."""
    config = msgspec.structs.replace(config, api_keys=credentials.api_keys, tls=credentials.tls)
    try:
        write_server_config(config, folder)
    except OSError as error:
        _log.warning("cannot write to %s: %s; nothing has changed", folder, error.strerror)


def _write_processes(folder: Path, children: Sequence[RunningPart]) -> None:
    """For the metrics. A full disk costs no more than what they show of memory."""
    own = DaemonProcess(os.getpid(), "supervisor")
    parts = [(child.pid, child.part) for child in children]
    others = [DaemonProcess(pid, p.role, p.model or "", p.number) for pid, p in parts]
    with suppress(OSError):
        write_processes(folder / PROCESS_FILE, [own, *others])


@contextmanager
def _listening(host: str, port: int, setting_names: SettingNames) -> Generator[socket.socket]:
    """A socket that listens. Raises StartError if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        where = setting_names.prefix("host")
        raise StartError(f"{where}cannot listen on {host}: {error.strerror}") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        where = setting_names.prefix("port")
        raise StartError(f"{where}cannot listen on {host}:{port}: {reason}") from None
    with listener:
        yield listener


@contextmanager
def _socket_folder() -> Generator[tuple[Path, TextIO]]:
    """A private folder for the daemon's sockets and its children's configurations.

    Raises StartError if it cannot be made, or the names of its sockets would be too long.
    """
    with ExitStack() as stack:
        with _room_for("make a folder for sockets"):
            sweep_private_folders()
            folder, announcement = stack.enter_context(private_folder())
        if len(str(folder)) + _LONGEST_NAME > _MAX_SOCKET_PATH:
            raise StartError(f"{folder.parent} is too long a path for sockets; set TMPDIR")
        yield folder, announcement


@contextmanager
def _room_for(what: str) -> Generator[None]:
    """Raises StartError where the file system refuses: it is full, for one."""
    try:
        yield
    except OSError as error:
        raise StartError(
            f"cannot {what}: {error.strerror}; TMPDIR can name a folder elsewhere"
        ) from None


def _is_ready(config: ServerConfig) -> bool:
    """Whether the daemon's own address says that it is ready."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared, not bound)
    host = everywhere.get(config.host, config.host)
    connection = _connection(host, config)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _connection(host: str, config: ServerConfig) -> http.client.HTTPConnection:
    if config.tls is None:
        return http.client.HTTPConnection(host, config.port, timeout=_PROBE_TIMEOUT_S)
    return http.client.HTTPSConnection(
        host, config.port, timeout=_PROBE_TIMEOUT_S, context=unverified_context()
    )


class _Formatter(logging.Formatter):
    """Progress with the time; errors as any command-line program says them."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.ERROR:
            return f"penstock: error: {record.getMessage()}"
        return super().format(record)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(message)s", TIME_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
