"""Engines that a program runs without HTTP or supervisor, and private folders, in which they and
daemons announce themselves."""

import asyncio
import fcntl
import os
import shutil
import signal
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from http.client import HTTPException
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import msgspec

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from server.daemon.parts import Part, RunningPart, Supervised, engine_parts
from server.models.model_setup import EngineOptions, set_up_model
from server.settings import defaults
from server.settings.settings import Limits, ServedModel, ServerConfig

_ResultT = TypeVar("_ResultT")

START_SECONDS = 900
"""For weights, compiled kernels and captured graphs."""

_START_ORDER = ("holder", "worker", "engine", "api")
"""Roles in the order of their start, the reverse of the order of their end.

An engine core logs an error if its worker ends before it, an API process if its engine core does.
"""

FOLDER_PREFIX = "penstock-"

_FILE = "running.json"

_MAX_SOCKET_PATH = 107
"""The longest name of a Unix socket on Linux, in bytes."""

_LONGEST_NAME = len("/symm_mem-4194304")
"""The longest name of a socket in the private folder: of a worker with the highest possible PID."""

_SETTLED_S = 60.0

_READY_POLL_S, _PROBE_TIMEOUT_S = 0.05, 2.0


class StartError(Exception):
    """The daemon cannot start on this machine as asked. One line says why."""


class RunningEngine(NamedTuple):
    """A model that runs, with the clients of its engine and of its copies."""

    engines: Engines
    model: ServedModel

    @property
    def client(self) -> EngineClient:
        """That of an engine without copies."""
        return self.engines[0]


@asynccontextmanager
async def running_engine(
    folder: Path, options: EngineOptions | None = None
) -> AsyncGenerator[RunningEngine]:
    """The engines of the model in `folder`, until the block ends. Raises StartError if it does not
    become ready, and what `set_up_model` raises."""
    options = options or EngineOptions(log_level="warning")
    # Whoever submits all work at once expects it to wait. What large jobs leave to other clients
    # comes on top: there are none.
    limits = Limits(max_queue_seconds=0, max_sequences=2 * Limits().max_sequences)
    max_tokens = 2 * defaults.MAX_PENDING_TOKENS
    with private_folder() as (directory, announcement):
        served = set_up_model("model", folder, options, limits, f"{directory}/0")
        engine, *copies = (
            msgspec.structs.replace(each, max_pending_tokens=max_tokens) for each in served.engines
        )
        model = msgspec.structs.replace(served, engine=engine, copies=tuple(copies))
        async with running_model(model, directory) as engine:
            announce(announcement, [model])
            yield engine


@asynccontextmanager
async def running_model(model: ServedModel, directory: Path) -> AsyncGenerator[RunningEngine]:
    """The engines of a model whose sockets are in `directory`, until the block ends. Raises
    StartError if they do not become ready."""
    async with running_parts(engine_parts([model], directory)) as parts:
        engines = Engines.of(model.engines)
        try:
            engines.start()
            await parts.until(engines.wait_ready(), START_SECONDS)
            yield RunningEngine(engines, model)
        finally:
            engines.close()


_CAUSE_S = 0.2
"""From the end of a process until that of another one, which is the cause, is noticed."""


class RunningParts(list[Supervised]):
    async def until(
        self, ready: Coroutine[object, object, _ResultT], seconds: float, limit: str = ""
    ) -> _ResultT:
        """The result of `ready`. Raises StartError after `seconds`, the name of whose `limit` it
        has, or once a process has ended."""
        try:
            async with asyncio.timeout(seconds):
                return await self.unless_ended(ready, " while starting")
        except TimeoutError:
            raise StartError(f"not ready after {seconds:g} s{limit}") from None

    async def unless_ended(
        self, work: Coroutine[object, object, _ResultT], meanwhile: str = ""
    ) -> _ResultT:
        """The result of `work`. Raises StartError, with the word for `meanwhile`, once a process
        has ended."""
        waiting = asyncio.ensure_future(work)
        try:
            either = (waiting, *(each.exit for each in self))
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
        finally:
            waiting.cancel()
        await asyncio.sleep(_CAUSE_S)
        raise StartError(f"the {cause_of(self.ended())}{meanwhile}")

    def ended(self) -> list[Supervised]:
        return [each for each in self if each.exit.done()]


def cause_of(ended: Sequence[Supervised]) -> str:
    """Name and end of a worker or node that was killed, or else of what ended first."""
    may_be = [part for part in ended if part.part.role in ("worker", "node")]
    cause = next((part for part in may_be if part.exit.result() < 0), ended[0])
    return f"{cause.part.title} {cause.end()}"


@asynccontextmanager
async def running_parts(parts: Sequence[Part]) -> AsyncGenerator[RunningParts]:
    """All of `parts`, until the block ends. Raises OSError."""
    running = RunningParts()
    try:
        for part in sorted(parts, key=lambda part: _START_ORDER.index(part.role)):
            running.append(RunningPart(part))
        yield running
    finally:
        for each in reversed(running):
            each.signal(signal.SIGKILL)
            await asyncio.wait([each.exit])


async def until_ready(config: ServerConfig) -> None:
    """Wait until all engines are ready, and the daemon's own address says that it is."""
    for model in config.models:
        # Whether one ends meanwhile its process says.
        engines = Engines(EngineClient(e.client_endpoint, returns=True) for e in model.engines)
        try:
            engines.start()
            await engines.wait_ready()
        finally:
            engines.close()
    while not await asyncio.to_thread(_is_ready, config):  # noqa: ASYNC110 (there is no event)
        await asyncio.sleep(_READY_POLL_S)


def _is_ready(config: ServerConfig) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate need not name it
    context.verify_mode = ssl.CERT_NONE
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        opener.open(f"{config.url}/health/ready", timeout=_PROBE_TIMEOUT_S).close()
    except (OSError, HTTPException):
        return False
    return True


class RunningDaemon(msgspec.Struct, frozen=True):
    """A daemon that runs: the process id of its supervisor, and what it serves."""

    pid: int
    models: tuple[ServedModel, ...]


@contextmanager
def private_folder() -> Generator[tuple[Path, FileIO]]:
    """A folder (0700) for sockets, and the file in it that `announce` writes. The file is locked as
    long as this process lives, however that ends. Folders whose processes are gone are deleted.
    Raises StartError if none can be made, or the names of sockets in it would be too long."""
    with ExitStack() as stack:
        with room_for("make a folder for sockets"):
            sweep_private_folders()
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Without a buffer, which a full disk would refuse when the file is closed.
            file = stack.enter_context((folder / _FILE).open("wb", buffering=0))
        # Who looks for daemons holds it for a moment.
        fcntl.flock(file, fcntl.LOCK_EX)
        if len(str(folder)) + _LONGEST_NAME > _MAX_SOCKET_PATH:
            raise StartError(f"{folder.parent} is too long a path for sockets; set TMPDIR")
        yield folder, file


@contextmanager
def room_for(what: str) -> Generator[None]:
    """Raises StartError where the file system refuses: it is full, for one."""
    try:
        yield
    except OSError as error:
        raise StartError(
            f"cannot {what}: {error.strerror}; TMPDIR can name a folder elsewhere"
        ) from None


def announce(file: FileIO, models: Sequence[ServedModel]) -> None:
    """Say in the file of a private folder that this process serves `models`. Raises OSError."""
    file.write(msgspec.json.encode(RunningDaemon(os.getpid(), tuple(models))))


def running_daemons() -> list[RunningDaemon]:
    """The running daemons of this user with the same folder for temporary files."""
    found: list[RunningDaemon] = []
    for folder in _own_folders():
        with suppress(OSError, msgspec.DecodeError), (folder / _FILE).open() as file:
            if _is_locked(file.fileno()):
                found.append(msgspec.json.decode(file.read(), type=RunningDaemon))
    return found


def sweep_private_folders() -> None:
    """Delete this user's private folders whose processes are gone."""
    for folder in _own_folders():
        # A younger one may be about to be locked.
        with suppress(OSError), (folder / _FILE).open() as file:
            is_old = time.time() - os.fstat(file.fileno()).st_mtime > _SETTLED_S
            if is_old and not _is_locked(file.fileno()):
                shutil.rmtree(folder, ignore_errors=True)


def _own_folders() -> list[Path]:
    own = os.getuid()
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"))
    return [folder for folder in folders if folder.is_dir() and folder.lstat().st_uid == own]


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
