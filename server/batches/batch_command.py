"""Run `penstock batch`: one job, to an exit code."""

import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from server.batches.daemon_backend import daemon_backend
from server.batches.engine_backend import EngineBackend, engine_backend
from server.batches.file_job import BESIDE_BODY, FileJob, LineRules
from server.batches.progress import Progress
from server.batches.result_log import JobFileError, NoRoomError
from server.batches.results import JobStoppedError
from server.daemon.parts import engine_parts
from server.daemon.run import START_SECONDS, announce, private_folder, running_parts
from server.models.devices import gpu_names
from server.models.model_source import model_folder
from server.models.served_models import build_served_models
from server.settings.settings import (
    Limits,
    ModelSettings,
    ServeCommand,
    ServedModel,
    api_key_from,
    flag_name,
    unattended,
)
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, read_bytes
from workers.contract.model_config import ModelConfig

_SIGNAL_EXIT = 128
_OF_RESULTS = ("names", "task", "max_model_len", "dtype", "load_format", "rerank")
_WEIGHTS = ("*.safetensors", "*.bin")
_FLOPS = {"H200": 650e12}
"""Measured rates of large bf16 products, by what a GPU's name contains. Others are not known."""


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed flags. `command` names the models; it is None with a daemon at `url`."""

    source: Path
    output: Path
    resume: bool
    url: str | None
    command: ServeCommand | None


def run_batch(options: BatchOptions) -> int:
    """Run the command. Returns its exit code; raises one of `server.daemon.daemon.START_ERRORS`."""
    try:
        return uvloop.run(_run(options, _job_of(options)))
    except (JobFileError, JobStoppedError) as error:
        kept = isinstance(error, NoRoomError)
        advice = "; what is done is kept, and --resume goes on from there" if kept else ""
        print(f"penstock: error: {error}{advice}", file=sys.stderr)
        return 1


def _job_of(options: BatchOptions) -> FileJob:
    """Make the job. Raises JobFileError for faults that would otherwise show at the end."""
    output, command = options.output, options.command
    log = output.with_name(f"{output.name}.part")
    if output.is_dir():
        raise JobFileError(f"{output} is a folder")
    if output.exists() and output.samefile(options.source):
        raise JobFileError(f"{output} is the input")
    if options.resume and output.exists() and not log.exists():
        raise JobFileError(f"{output} is complete: there is no {log}")
    limits = Limits() if command is None else command.settings
    return FileJob(
        options.source,
        log,
        rules=LineRules(max_line_bytes=limits.max_body_size + BESIDE_BODY),
        options={"the model": "a daemon's"} if command is None else result_options(command),
    )


async def _run(options: BatchOptions, job: FileJob) -> int:
    """The exit code. Raises JobFileError, JobStoppedError, or one of START_ERRORS."""
    stopped = _cancelled_by_signals()
    floor, started = "", time.perf_counter()
    await job.open(resume=options.resume)
    try:
        if job.summary.done < job.summary.requests:
            floor = await _answer(options, job)
    except asyncio.CancelledError:
        _keep(options, job)
        return _SIGNAL_EXIT + stopped[0]
    except JobStoppedError as error:
        _keep(options, job)
        raise JobStoppedError(f"{error}; --resume goes on from here") from None
    job.assemble(options.output)
    job.remove()
    job.summary.seconds = time.perf_counter() - started
    print(f"{job.summary}{floor}")
    return 0


def _cancelled_by_signals() -> list[int]:
    """Have SIGINT and SIGTERM cancel the running task. Returns a list that gets their numbers."""
    stopped: list[int] = []
    main = asyncio.current_task()
    assert main is not None, "a task runs the command"

    def stop(number: int) -> None:
        stopped.append(number)
        main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopped


async def _answer(options: BatchOptions, job: FileJob) -> str:
    """Answer the lines that are left and show the progress. Returns the end of the summary: which
    part of the time the matrix products alone would take, where that is known."""
    summary, before = job.summary, msgspec.structs.replace(job.summary)
    progress = Progress(
        options.source.name,
        "requests",
        summary.requests - summary.earlier,
        lambda: summary.done - summary.earlier,
        lambda: f"{summary.saved_share:.1%} of prompt tokens saved" if summary.completed else "",
    )
    if options.command is not None:
        opened = own_engines(options.command)
    else:
        opened = daemon_backend(str(options.url), api_key_from())
    async with opened as backend:
        summary.sharing = backend.sharing
        async with progress.shown():
            started = time.perf_counter()
            await job.run(backend)
            seconds = time.perf_counter() - started
        if not isinstance(backend, EngineBackend):
            return ""
        least = floor_seconds(
            backend.models,
            summary.computed_tokens - before.computed_tokens,
            summary.output_tokens - before.output_tokens,
        )
    return "" if least is None else f"; {least / seconds:.0%} of the floor (matrix products alone)"


def _keep(options: BatchOptions, job: FileJob) -> None:
    """End the job early. Its results are in the output, and in the log for `--resume`."""
    job.assemble(options.output)
    job.close()
    print(
        f"{job.summary.done:,} of {job.summary.requests:,} requests are in {options.output}; "
        "--resume goes on from here",
        file=sys.stderr,
    )


@asynccontextmanager
async def own_engines(command: ServeCommand) -> AsyncGenerator[EngineBackend]:
    """Run an engine for each model of `command` within the block. Raises one of
    `server.daemon.daemon.START_ERRORS`."""
    # All work is submitted at once, and expected to wait.
    settings = msgspec.structs.replace(command.settings, max_queue_seconds=0, log_level="warning")
    with private_folder() as (folder, announcement):
        models = build_served_models(settings, command.setting_names, folder)
        config = unattended(settings, models)
        async with running_parts(engine_parts(models, folder)) as parts, AsyncExitStack() as stack:
            ready = stack.enter_async_context(engine_backend(config))
            backend = await parts.until(ready, START_SECONDS)
            announce(announcement, models)
            yield backend


def result_options(command: ServeCommand) -> dict[str, str]:
    """The models and their settings that change results. Models of the hub are downloaded. Raises
    ModelSourceError."""
    options: dict[str, str] = {}
    for index, model in enumerate(command.settings.models):
        suffix = f" of model {index + 1}" if index else ""
        options[f"the model{suffix}"] = f"{model.model} ({_contents(model)})"
        for key in _OF_RESULTS:
            options[f"{flag_name(key)}{suffix}"] = str(getattr(model, key))
    return options


def _contents(model: ModelSettings) -> str:
    """A digest of a checkpoint's configuration, and of the names and sizes of its weights."""
    folder = model_folder(model.model, model.load_format)
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(folder.glob("*.json")):
        content = read_bytes(folder, file.name, TOKENIZER_BYTES)
        digest.update(file.name.encode() + content)
    for file in sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
    return digest.hexdigest()


def floor_seconds(models: Sequence[ServedModel], computed: int, sampled: int) -> float | None:
    """The seconds that the matrix products of these tokens alone take on the engine's GPUs.

    Known for a single generator in 16 bits on measured GPUs, otherwise None.
    """
    if len(models) != 1:
        return None
    execution = models[0].execution
    known = execution.task == "generate" and execution.device_type == "cuda"
    if not known or execution.dtype == "float32":
        return None
    gpus = gpu_names()
    rates = [rate for name, rate in _FLOPS.items() if all(name in gpu for gpu in gpus)]
    if not rates or not gpus:
        return None
    return 2 * products(execution.model, computed, sampled) / (rates[0] * execution.num_stages)


def products(model: ModelConfig, computed: int, sampled: int) -> float:
    """Multiplications: those of the layers for each computed token, of the LM head for each sampled
    one."""
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    layers = model.num_layers * model.hidden_size * (heads + 3 * model.intermediate_size)
    return layers * computed + model.vocab_size * model.hidden_size * sampled
