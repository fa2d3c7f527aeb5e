"""The daemon's child processes, which `supervisor.py` starts and ends."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from server.event_loop import ChildProcess
from server.models.devices import VISIBLE_DEVICES, available_cores, visible_devices
from server.settings.settings import ServedModel, ServerConfig, cache_folder, child_environment
from workers.contract.config import ExecutionConfig, WorkerConfig, copy_suffix, engine_name
from workers.contract.process import BEAT_SECONDS, NO_MULTICAST

PROCESS_FILE = "processes.json"
"""In the private folder: which processes the daemon has, once all are started."""

_BATCH_FILE = "batches.state"

Role = Literal["engine", "holder", "worker", "node", "api", "batch"]

_WORKER_SETTINGS = NO_MULTICAST | {
    # glibc would give a step's temporaries back to the kernel and fault their pages in again at
    # the next: paged attention on a CPU then takes five times as long. Bytes; 32 MiB is its limit.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    # OpenMP's threads spin between regions; beside other processes that starves the one they wait
    # for. Turns of the spin: few enough to yield, enough for the gap between two layers.
    "GOMP_SPINCOUNT": "1000",
}

_CPU_WORKER_SETTINGS = {
    # oneDNN keeps 1,024 primitives, and torch as many descriptions of them. A product of a weight
    # and another number of rows has two, together half a megabyte, and takes a millisecond to make.
    # This is enough for 50 numbers of rows. Torch crashes with none of its own.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512",
    "LRU_CACHE_CAPACITY": "256",
}

# Memory of another kind is shared by file descriptors that the kernel may refuse to a sibling.
_HOLDER_SETTINGS = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
}

_FLASH_ATTENTION_CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE"
"""The beginning of the variables by which flash-attn-4 keeps what it compiles, for seconds each."""

_API_SETTINGS = {
    # glibc would keep what large bodies and answers took, once a few have been freed. Bytes.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A child process to be: of an engine that of `model`, or of a `copy`, or an API process, which
    serves all. `number` is a worker's stage, or counts API processes. `inherited_fd` stays open in
    it. Another process may be `spared` to take its place. A node is a process on another host,
    which is not started from here."""

    title: str
    role: Role
    model: str | None = None
    copy: int | None = None
    number: int = 0
    command: list[str]
    environment: dict[str, str]
    inherited_fd: int | None = None
    spared: bool = False

    @property
    def group(self) -> str:
        """The name of what is lost together: an engine, or the part itself."""
        return self.title if self.model is None else engine_name(self.model, self.copy)


LOOPBACK = "lo"


def daemon_parts(
    config: ServerConfig, listening_fd: int, directory: Path, interface: str = LOOPBACK
) -> list[Part]:
    """Every process of the daemon on this host. Their configurations are written into private
    `directory`."""
    server_file = write_server_config(config, directory)
    parts = engine_parts(config.models, directory, interface)
    parts += [
        Part(
            title=f"api process {index}",
            role="api",
            number=index,
            command=_command(
                "server.daemon.api_process", server_file, str(listening_fd), str(index)
            ),
            environment=child_environment(settings=_API_SETTINGS),
            inherited_fd=listening_fd,
        )
        for index in range(config.api_workers)
    ]
    if config.state.folder is not None:
        batches = Part(
            title="batch process",
            role="batch",
            command=_command("server.batches.batch_process", server_file),
            environment=child_environment(tokenizer_threads=_tokenizer_threads()),
        )
        parts.append(batches)
    return parts


def _tokenizer_threads() -> int:
    """Threads of the library in a process that tokenizes. Others need the rest of the cores."""
    return max(1, available_cores() * 3 // 4)


def engine_parts(
    models: Sequence[ServedModel], directory: Path, interface: str = LOOPBACK
) -> list[Part]:
    """The engine cores, and the workers of this host."""
    parts: list[Part] = []
    for index, model in enumerate(models):
        for config in model.engines:
            execution = config.execution
            prefix = directory / f"{index}{copy_suffix(execution.copy)}"
            engine = Part(
                title=f"engine of {execution.engine_name}",
                role="engine",
                model=execution.name,
                copy=execution.copy,
                command=_command("engine_core", _written(Path(f"{prefix}.engine.json"), config)),
                environment=child_environment(tokenizer_threads=_tokenizer_threads()),
            )
            parts.append(engine)
            parts += worker_parts(execution, prefix, 0, interface)
    return parts


def worker_parts(execution: ExecutionConfig, prefix: Path, node: int, interface: str) -> list[Part]:
    """The workers of the host of this rank, and the holders of their weights. The names of files
    begin with `prefix`. What gloo and NCCL send is plain TCP, which is held to `interface`."""
    roles: list[Role] = ["holder", "worker"] if execution.keeps_weights else ["worker"]
    return [
        _stage_part(execution, stage, role, Path(f"{prefix}.{role}-{stage}.json"), interface)
        for stage in execution.stages_of(node)
        for role in roles
    ]


def _stage_part(
    execution: ExecutionConfig, stage: int, role: Role, file: Path, interface: str
) -> Part:
    config = WorkerConfig(execution=execution, stage=stage)
    module = "workers" if role == "worker" else "workers.weights.holder"
    return Part(
        title=f"{role} {stage} of {execution.engine_name}",
        role=role,
        model=execution.name,
        copy=execution.copy,
        number=stage,
        command=_command(module, _written(file, config)),
        # What a spare process imports takes a second on a CPU, and memory.
        spared=role == "worker" and execution.device_type == "cuda",
        environment=child_environment(
            compute_threads=execution.threads,
            settings=_WORKER_SETTINGS
            | (_HOLDER_SETTINGS if role == "holder" else {})
            | (_CPU_WORKER_SETTINGS if execution.device_type == "cpu" else _cuda_worker_settings())
            | {
                VISIBLE_DEVICES: visible_devices(config.gpus),
                "GLOO_SOCKET_IFNAME": interface,
                "NCCL_SOCKET_IFNAME": f"={interface}",  # without `=` it is how names begin
                # Torch's symmetric memory makes its sockets there (symm_mem-PID).
                "TMPDIR": str(file.parent),
            },
        ),
    )


def _cuda_worker_settings() -> dict[str, str]:
    """Where a worker on a GPU keeps compiled kernels, if it can write there and nothing else is
    set."""
    folder = cache_folder() / "flash_attn"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    settings = {
        f"{_FLASH_ATTENTION_CACHE}_ENABLED": "1",
        f"{_FLASH_ATTENTION_CACHE}_DIR": str(folder),
    }
    free = not settings.keys() & os.environ.keys()
    return settings if free and os.access(folder, os.W_OK) else {}


def write_server_config(config: ServerConfig, directory: Path) -> str:
    """Write, or replace, the file that API processes read: when they start, and after SIGHUP.
    Raises OSError."""
    counts = [str(directory / f"api-{index}.counts") for index in range(config.api_workers)]
    config = msgspec.structs.replace(
        config,
        process_file=str(directory / PROCESS_FILE),
        batch_file=None if config.state.switched_off else str(directory / _BATCH_FILE),
        count_files=tuple(counts),
    )
    file, new = directory / "server.json", directory / "server.json.new"
    new.unlink(missing_ok=True)
    Path(_written(new, config)).replace(file)
    return str(file)


def _command(module: str, *arguments: str) -> list[str]:
    # -P: a file in the current folder that is called like one of our packages is not imported.
    return [sys.executable, "-P", "-m", module, *arguments]


def _written(file: Path, config: msgspec.Struct) -> str:
    """Write a configuration, readable by this user only: it may hold API keys' digests."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        target.write(msgspec.json.encode(config))
    return str(file)


_ALL_BEATS = 1 << 16


class Supervised(Protocol):
    """A part that runs, here or on another host: its `exit` becomes its status."""

    part: Part
    exit: asyncio.Future[int]

    def signal(self, number: signal.Signals) -> None: ...

    def end(self) -> str:
        """How it has ended, behind its title."""
        ...


class SupervisedNode(Supervised, Protocol):
    """Another host's part. If it is ended for a `cause`, it fails."""

    cause: str


class RunningPart(ChildProcess):
    """The process of `part`. What comes from its socket are heartbeats, and lines of its own."""

    def __init__(self, part: Part, restarts: int | Literal["spare"] = 0) -> None:
        """Start it. Its last argument is the number of times that this was done before, which a
        spare gets when it takes a part's place. Raises OSError."""
        inherited = () if part.inherited_fd is None else (part.inherited_fd,)
        super().__init__([*part.command, str(restarts)], part.environment, pass_fds=inherited)
        self.part = part
        self._silent, self._said = 0, ""
        self._stall = ""
        self.exit.add_done_callback(lambda _: self.socket.close())

    def take_place(self, restarts: int) -> bool:
        """Have this spare be what it is a spare of. False if it has ended."""
        with suppress(OSError):
            return self.socket.send(f"{restarts}\n".encode()) > 0
        return False

    def silent_beats(self) -> int:
        """For how many calls in a row no heartbeat has come, if called every BEAT_SECONDS."""
        try:
            received = self.socket.recv(_ALL_BEATS).decode()
        except BlockingIOError:
            received = ""
        self._silent = 0 if received else self._silent + 1
        self._said += received
        return self._silent

    def said(self) -> list[str]:
        """The lines that have come with heartbeats since the last call."""
        *lines, self._said = self._said.split("\n")
        return list(filter(None, lines))

    def kill_stalled(self) -> None:
        seconds = self._silent * BEAT_SECONDS
        self._stall = f"stood still (no heartbeat for {seconds:g} s) and was killed"
        self.signal(signal.SIGKILL)

    def end(self) -> str:
        return self._stall or super().end()
