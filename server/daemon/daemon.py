"""One daemon, from a command to an exit code: configuration, socket, private folder, processes."""

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from server.batches.state.database import StateFolderError
from server.batches.state.secret import new_secret
from server.batches.state.state_folder import NoStateFolderError, StateLock
from server.daemon.credentials import Credentials
from server.daemon.parts import (
    LOOPBACK,
    PROCESS_FILE,
    Part,
    RunningPart,
    SupervisedNode,
    daemon_parts,
    write_server_config,
)
from server.daemon.run import (
    StartError,
    announce,
    private_folder,
    room_for,
    until_ready,
)
from server.daemon.supervisor import Hangup, Moments, Supervisor
from server.daemon.welcome import describe, welcome
from server.demo import DemoModelMissingError
from server.models.model_files import ModelFiles
from server.models.model_source import SetupError
from server.models.placement import Cluster
from server.models.served_models import MODEL_ERRORS, build_served_models
from server.observe.processes import DaemonProcess, write_processes
from server.settings.api_keys import ALL_KEYS, APIKey
from server.settings.settings import (
    NO_STATE,
    ServeCommand,
    ServerConfig,
    SettingNames,
    SettingsError,
    State,
    state_folder,
    traces_protocol_from,
)
from workers.contract.process import TIME_FORMAT

_BACKLOG = 2048
_TRACES_PACKAGE = "opentelemetry-exporter-otlp-proto-http"
_SWITCHED_OFF = "this server stores no files and no batches: --state-dir is none"
_UNUSABLE = "this server has no folder for files and batches (--state-dir): its log has the reason"
_ENOUGH_FILES = 65_536
# Files that an API process has open besides connections: its own, and more for each model.
_OWN_FILES = 40
_FILES_PER_MODEL = 8

_log = logging.getLogger("penstock")


START_ERRORS = (StartError, DemoModelMissingError, SettingsError, SetupError, *MODEL_ERRORS)
"""Errors that prevent a start. Each message is one line."""


def serve(command: ServeCommand, hangup: Hangup) -> int:
    """Serve until stopped. Returns the exit code. Raises one of START_ERRORS before any process
    is started."""
    with launching(command) as launch:
        return finished(asyncio.run(launch.supervise(launch.configuration(), hangup)))


def finished(code: int) -> int:
    """The exit code, after a line unless the last one says why."""
    if code == 0:
        _log.info("stopped")
    return code


class Launch(NamedTuple):
    """A daemon that has its port and its private folder, and no process yet."""

    command: ServeCommand
    credentials: Credentials
    listener: socket.socket
    folder: Path
    announcement: FileIO
    state: State

    def configuration(self, cluster: Cluster | None = None) -> ServerConfig:
        """Decide what was left open. Raises what `build_config` raises."""
        port = self.listener.getsockname()[1]
        decided = build_config(
            self.command, self.credentials, port=port, folder=self.folder, cluster=cluster
        )
        config = msgspec.structs.replace(decided, state=self.state)
        for model in config.models:
            _log.info("starting %s", describe(model))
        _warn_of_few_open_files(config)
        return config

    async def supervise(
        self,
        config: ServerConfig,
        hangup: Hangup,
        nodes: Sequence[SupervisedNode] = (),
        interface: str = LOOPBACK,
    ) -> int:
        """Start all processes, and serve until stopped. Returns the exit code. Raises
        StartError."""
        folder = self.folder
        with room_for(f"write to {folder}"):
            announce(self.announcement, config.models)
            parts = daemon_parts(config, self.listener.fileno(), folder, interface)
        return await _supervise(parts, config, self, hangup, nodes)


@contextmanager
def launching(command: ServeCommand) -> Generator[Launch]:
    """Begin the log, and hold the port, the private folder and the state folder. Raises one of
    START_ERRORS."""
    settings = command.settings
    log_to_stderr(settings.log_level)
    _raise_open_files_limit()
    where = _listening(settings.host, settings.port, command.setting_names)
    with where as listener, private_folder() as (folder, announcement), ExitStack() as stack:
        credentials = Credentials(command)
        state = stack.enter_context(held_state(settings.state_dir, credentials.api_keys))
        yield Launch(command, credentials, listener, folder, announcement, state)


def build_config(
    command: ServeCommand,
    credentials: Credentials,
    *,
    port: int,
    folder: Path,
    cluster: Cluster | None = None,
) -> ServerConfig:
    """The configuration of a daemon on `port` whose sockets are in `folder`. Models of the hub are
    downloaded. With a `cluster` the model is divided over its hosts. Raises SettingsError, or what
    `set_up_model` raises."""
    settings, names = command.settings, command.setting_names
    known = {ALL_KEYS, *(key.name for key in credentials.api_keys)}
    if unknown := [name for name in settings.share_prefixes if name not in known]:
        raise SettingsError(f"{names.of('share_prefixes')}: no API key is called {unknown[0]}")
    if settings.metrics_key and not credentials.api_keys:
        raise SettingsError(f"{names.of('metrics_key')}: there are no API keys")
    if settings.otlp_traces_endpoint is not None:
        _check_traces(names.of("otlp_traces_endpoint"))
    if cluster is not None:
        # Several hosts end together, and start again as a whole.
        settings = msgspec.structs.replace(settings, max_restarts=0)
    decided: dict[str, Any] = {
        "port": port,
        "api_keys": credentials.api_keys,
        "cache_secret": new_secret(),
        "tls": credentials.tls,
        "models": build_served_models(settings, names, folder, cluster),
    }
    return ServerConfig(**msgspec.structs.asdict(settings) | decided)


def _check_traces(setting: str) -> None:
    """Raises SettingsError if traces could not be sent."""
    variable, protocol = traces_protocol_from()
    if protocol not in ("", "http/protobuf"):
        raise SettingsError(
            f"{setting}: {variable} is {protocol}; traces are sent by http/protobuf alone"
        )
    try:
        distribution(_TRACES_PACKAGE)
    except PackageNotFoundError:
        raise SettingsError(f"{setting}: pip install 'penstock[otel]' to send traces") from None


@contextmanager
def held_state(setting: str | None, keys: Sequence[APIKey]) -> Generator[State]:
    """The state folder that the setting names, by default the user's, locked for this daemon. What
    one of `keys` stored before it had a name becomes its name's."""
    if setting == NO_STATE:
        yield State(fault=_SWITCHED_OFF, switched_off=True, secret=new_secret())
        return
    folder = Path(setting).expanduser().absolute() if setting else state_folder()
    try:
        lock = StateLock(folder, [(key.digest, key.owner) for key in keys if key.is_named])
    except StateFolderError as error:
        # Nobody has asked for the default folder.
        is_missed = setting is not None or not isinstance(error, NoStateFolderError)
        level = logging.WARNING if is_missed else logging.INFO
        message = "%s; no files and batches: --state-dir names another folder, or none"
        _log.log(level, message, error)
        yield State(fault=_UNUSABLE, secret=new_secret())
        return
    try:
        yield State(folder=str(folder), token=lock.token, secret=lock.secret)
    finally:
        lock.release()


async def _supervise(
    parts: Sequence[Part],
    config: ServerConfig,
    launch: Launch,
    hangup: Hangup,
    nodes: Sequence[SupervisedNode],
) -> int:
    credentials, folder = launch.credentials, launch.folder

    def show_welcome(seconds: float) -> None:
        print(welcome(config, seconds), file=sys.stderr, flush=True)

    def reload() -> None:
        """Give the API processes the credentials that the files hold now."""
        credentials.read_again()
        # An API process that is started later counts in the same cells as the others.
        renewed = msgspec.structs.replace(
            config, api_keys=credentials.api_keys, counted_keys=config.key_names
        )
        try:
            write_server_config(renewed, folder)
        except OSError as error:
            _log.warning("cannot write to %s: %s; nothing has changed", folder, error.strerror)

    def on_started(children: Sequence[RunningPart]) -> None:
        running = [(child.pid, child.part) for child in children]
        others = [DaemonProcess(pid, p.role, p.model or "", p.number, p.copy) for pid, p in running]
        with suppress(OSError):  # a full disk costs no more than what metrics show of memory
            write_processes(
                folder / PROCESS_FILE, [DaemonProcess(os.getpid(), "supervisor"), *others]
            )

    moments = Moments(
        until_ready=partial(until_ready, config),
        on_started=on_started,
        on_ready=show_welcome,
        on_hangup=reload,
        # The API processes alone hold it from then on: a connection must not wait in the queue of
        # a socket that nobody will accept from.
        on_drain=launch.listener.close,
    )
    files = {model.name: ModelFiles(Path(model.path)) for model in config.models}
    return await Supervisor(parts, config, hangup, moments, nodes=nodes, files=files).run()


@contextmanager
def _listening(host: str, port: int, setting_names: SettingNames) -> Generator[socket.socket]:
    """A socket that listens. Raises StartError if the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        where = setting_names.of("host")
        raise StartError(f"{where}: cannot listen on {host}: {error.strerror}") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        where = setting_names.of("port")
        raise StartError(f"{where}: cannot listen on {host}:{port}: {reason}") from None
    with listener:
        yield listener


def _raise_open_files_limit() -> None:
    """Raise the limit, for this process and its children, as far as allowed: connections are
    files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _warn_of_few_open_files(config: ServerConfig) -> None:
    """Warn if an API process cannot have a connection for its part of the sequences in flight."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    requests = max(1, config.max_sequences // config.api_workers)
    needed = requests + _OWN_FILES + _FILES_PER_MODEL * len(config.models)
    if soft != resource.RLIM_INFINITY and soft < needed:
        _log.warning(
            "an API process may open %d files, but needs %d to take %d requests at once: "
            "connections beyond will be closed unanswered. Raise the hard limit (ulimit -Hn, "
            "systemd: LimitNOFILE=) or lower --max-sequences",
            *(soft, needed, requests),
        )


class _Formatter(logging.Formatter):
    """Progress with the time. Errors as any command-line program says them."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.ERROR:
            return f"penstock: error: {record.getMessage()}"
        return super().format(record)


def log_to_stderr(level: str) -> None:
    """Begin the log of a command that lasts."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(message)s", TIME_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
