"""The daemon's child processes: what each is called, how it is started, what it is given."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.config import EngineConfig
from server.models.devices import VISIBLE_DEVICES, available_cores, visible_device
from server.settings.server_config import ServedModel, ServerConfig, child_environment
from workers.contract.config import WorkerConfig

Role = Literal["engine", "worker", "api"]


_WORKER_SETTINGS = {
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


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A child process to be: of an engine that of `model`, or an API process, which serves all.

    `inherited_fd` stays open in it, and is closed in the supervisor.
    """

    title: str
    role: Role
    model: str | None = None
    command: list[str]
    environment: dict[str, str]
    inherited_fd: int | None = None


def daemon_parts(config: ServerConfig, listening_fd: int, directory: Path) -> list[Part]:
    """Every process of the daemon. Their configurations are written into private `directory`."""
    engines = engine_parts(config.models, directory)
    return engines + _api_parts(config, listening_fd, directory)


def engine_parts(models: Sequence[ServedModel], directory: Path) -> list[Part]:
    """The engine core and the workers of each model."""
    parts: list[Part] = []
    for index, model in enumerate(models):
        engine = model.engine
        parts.append(_engine_part(engine, directory / f"{index}.engine.json"))
        parts += [
            _worker_part(engine, stage, directory / f"{index}.worker-{stage}.json")
            for stage in range(engine.num_stages)
        ]
    return parts


def _engine_part(engine: EngineConfig, file: Path) -> Part:
    return Part(
        title=f"engine of {engine.name}",
        role="engine",
        model=engine.name,
        command=_command("engine_core", _written(file, engine)),
        environment=child_environment(tokenizer_threads=max(1, available_cores() // 2)),
    )


def _worker_part(engine: EngineConfig, stage: int, file: Path) -> Part:
    return Part(
        title=f"worker {stage} of {engine.name}",
        role="worker",
        model=engine.name,
        command=_command("workers", _written(file, worker_config(engine, stage))),
        environment=child_environment(
            compute_threads=engine.threads,
            settings=_WORKER_SETTINGS | {VISIBLE_DEVICES: visible_device(engine.device, stage)},
        ),
    )


def _api_parts(config: ServerConfig, listening_fd: int, directory: Path) -> list[Part]:
    file = _written(directory / "server.json", config)
    several: dict[str, str] = {}
    if config.api_workers > 1:
        metrics = directory / "metrics"
        metrics.mkdir()
        several["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
    return [
        Part(
            title=f"api process {index}",
            role="api",
            command=_command("server.app.api_process", file, str(listening_fd)),
            environment=child_environment(settings=several),
            inherited_fd=listening_fd,
        )
        for index in range(config.api_workers)
    ]


def worker_config(engine: EngineConfig, stage: int) -> WorkerConfig:
    """What one stage needs to know of its engine's configuration."""
    return WorkerConfig(
        name=engine.name,
        model=engine.model,
        task=engine.task,
        stage=stage,
        num_stages=engine.num_stages,
        device="cpu" if engine.device == "cpu" else "cuda",
        dtype=engine.dtype,
        load_format=engine.load_format,
        attention_backend=engine.attention_backend,
        threads=engine.threads,
        depth=engine.depth,
        max_slots=engine.max_running,
        max_model_len=engine.max_model_len,
        max_step_tokens=engine.max_step_tokens,
        block_size=engine.block_size,
        kv_cache_bytes=engine.kv_cache_bytes,
        memory_share_bytes=engine.memory_share_bytes,
        endpoint=engine.worker_endpoint,
        token_endpoint=engine.token_endpoint,
        rendezvous=engine.rendezvous,
        log_level=engine.log_level,
    )


def _command(module: str, *arguments: str) -> list[str]:
    # -P: a file in the current folder that is called like one of our packages is not imported.
    return [sys.executable, "-P", "-m", module, *arguments]


def _written(file: Path, config: msgspec.Struct) -> str:
    """Write a configuration, readable by this user only: it may hold API keys' digests."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        target.write(msgspec.json.encode(config))
    return str(file)
