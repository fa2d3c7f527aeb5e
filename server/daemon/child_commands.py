"""The commands of the daemon's child processes, with their environments and configuration files.

Nothing is started here: `running_part.py` starts one `Part`, `supervisor.py` starts and ends all.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.config import EngineConfig
from server.models.devices import VISIBLE_DEVICES, available_cores, visible_devices
from server.settings.server_config import ServedModel, ServerConfig, child_environment
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.process import NO_MULTICAST

PROCESS_FILE = "processes.json"
"""In the private folder: which processes the daemon has, once all are started."""

_BATCH_FILE = "batches.state"

Role = Literal["engine", "worker", "api", "batch"]


_WORKER_SETTINGS = NO_MULTICAST | {
    # gloo and NCCL speak plain TCP: on one host they are held to loopback.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
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

_API_SETTINGS = {
    # glibc would keep what large bodies and answers took, once a few have been freed. Bytes.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A child process to be: of an engine that of `model`, or an API process, which serves all.

    `number` is a worker's stage, or counts API processes. `inherited_fd` stays open in it, and is
    closed in the supervisor.
    """

    title: str
    role: Role
    model: str | None = None
    number: int = 0
    command: list[str]
    environment: dict[str, str]
    inherited_fd: int | None = None


def daemon_parts(config: ServerConfig, listening_fd: int, directory: Path) -> list[Part]:
    """Every process of the daemon. Their configurations are written into private `directory`."""
    server_file = write_server_config(config, directory)
    batches = [] if config.state.folder is None else [_batch_part(server_file)]
    return [
        *engine_parts(config.models, directory),
        *_api_parts(config, listening_fd, server_file),
        *batches,
    ]


def engine_parts(models: Sequence[ServedModel], directory: Path) -> list[Part]:
    """The engine core and the workers of each model."""
    parts: list[Part] = []
    for index, model in enumerate(models):
        execution = model.execution
        parts.append(_engine_part(model.engine, directory / f"{index}.engine.json"))
        parts += [
            _worker_part(execution, stage, directory / f"{index}.worker-{stage}.json")
            for stage in range(execution.num_stages)
        ]
    return parts


def _engine_part(engine: EngineConfig, file: Path) -> Part:
    name = engine.execution.name
    return Part(
        title=f"engine of {name}",
        role="engine",
        model=name,
        command=_command("engine_core", _written(file, engine)),
        environment=child_environment(tokenizer_threads=max(1, available_cores() // 2)),
    )


def _worker_part(execution: ExecutionConfig, stage: int, file: Path) -> Part:
    config = WorkerConfig(execution=execution, stage=stage)
    return Part(
        title=f"worker {stage} of {execution.name}",
        role="worker",
        model=execution.name,
        number=stage,
        command=_command("workers", _written(file, config)),
        environment=child_environment(
            compute_threads=execution.threads,
            settings=_WORKER_SETTINGS
            | (_CPU_WORKER_SETTINGS if execution.device_type == "cpu" else {})
            | {
                VISIBLE_DEVICES: visible_devices(execution.gpus),
                # Torch's symmetric memory makes its sockets there (symm_mem-PID).
                "TMPDIR": str(file.parent),
            },
        ),
    )


def _api_parts(config: ServerConfig, listening_fd: int, server_file: str) -> list[Part]:
    return [
        Part(
            title=f"api process {index}",
            role="api",
            number=index,
            command=_command("server.app.api_process", server_file, str(listening_fd), str(index)),
            environment=child_environment(settings=_API_SETTINGS),
            inherited_fd=listening_fd,
        )
        for index in range(config.api_workers)
    ]


def _batch_part(server_file: str) -> Part:
    """It reads the configuration of the API processes."""
    return Part(
        title="batch process",
        role="batch",
        command=_command("server.batch_process.batch_main", server_file),
        environment=child_environment(tokenizer_threads=max(1, available_cores() // 2)),
    )


def write_server_config(config: ServerConfig, directory: Path) -> str:
    """Write, or replace, the file that API processes read: when they start, and after SIGHUP.
    Raises OSError."""
    counts = [str(directory / f"api-{index}.counts") for index in range(config.api_workers)]
    config = msgspec.structs.replace(
        config,
        process_file=str(directory / PROCESS_FILE),
        batch_file=None if config.state.switched_off else str(directory / _BATCH_FILE),
        count_files=tuple(counts) if config.api_workers > 1 else (),
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
