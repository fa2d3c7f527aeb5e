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
from server.batches.progress import progress_shown
from server.batches.result_log import JobFileError, NoRoomError
from server.batches.results import JobStoppedError
from server.daemon.parts import engine_parts
from server.daemon.run import START_SECONDS, announce, private_folder, running_parts
from server.errors import CommandError
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
_OF_RESULTS = (
    *("names", "task", "max_model_len", "dtype", "quantization", "kv_cache_dtype"),
    *("load_format", "rerank"),
)
_WEIGHTS = ("*.safetensors", "*.bin")
_GPU, _FLOPS = "H200", 650e12
"""The measured rate of large bf16 products, on GPUs of this name."""


class BatchOptions(msgspec.Struct, frozen=True):
    """The parsed flags. `answerer` names the models to run, or the URL of a daemon."""

    source: Path
    output: Path
    resume: bool
    answerer: ServeCommand | str


def run_batch(options: BatchOptions) -> int:
    """Run the command. Returns its exit code; raises CommandError, or one of
    `server.daemon.daemon.START_ERRORS`."""
    try:
        return uvloop.run(_run(options, _job_of(options)))
    except NoRoomError as error:
        message = f"{error}; what is done is kept, and --resume goes on from there"
        raise CommandError(message) from None


def _job_of(options: BatchOptions) -> FileJob:
    """Make the job. Raises JobFileError for faults that would otherwise show at the end."""
    output, answerer = options.output, options.answerer
    log = output.with_name(f"{output.name}.part")
    if output.is_dir():
        raise JobFileError(f"{output} is a folder")
    if output.exists() and output.samefile(options.source):
        raise JobFileError(f"{output} is the input")
    if options.resume and output.exists() and not log.exists():
        raise JobFileError(f"{output} is complete: there is no {log}")
    is_remote = isinstance(answerer, str)
    limits = Limits() if is_remote else answerer.settings
    return FileJob(
        options.source,
        log,
        rules=LineRules(max_line_bytes=limits.max_body_size + BESIDE_BODY),
        options={"the model": "a daemon's"} if is_remote else result_options(answerer),
    )


async def _run(options: BatchOptions, job: FileJob) -> int:
    """The exit code. Raises CommandError, or one of START_ERRORS."""
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
        raise CommandError(f"{error}; --resume goes on from here") from None
    job.assemble(options.output)
    job.remove()
    job.summary.seconds = time.perf_counter() - started
    print(f"{job.summary}{floor}")
    return 0


def _cancelled_by_signals() -> list[int]:
    """Have SIGINT and SIGTERM cancel this task. Returns a list that gets their numbers."""
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
    """Answer the lines that are left. Returns the end of the summary: which part of the time the
    matrix products alone would take, where that is known."""
    summary, before = job.summary, msgspec.structs.replace(job.summary)
    progress = progress_shown(
        options.source.name,
        "requests",
        summary.requests - summary.earlier,
        lambda: summary.done - summary.earlier,
        lambda: f"{summary.saved_share:.1%} of prompt tokens saved",
    )
    if isinstance(options.answerer, str):
        opened = daemon_backend(options.answerer, api_key_from())
    else:
        opened = own_engines(options.answerer)
    async with opened as backend:
        summary.sharing = backend.sharing
        async with progress:
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
    """Run an engine for each model of `command` within the block. Raises one of START_ERRORS."""
    # All work is submitted at once, and expected to wait. Nobody would start lost stages again.
    settings = msgspec.structs.replace(
        command.settings, max_queue_seconds=0, max_restarts=0, log_level="warning"
    )
    with private_folder() as (folder, announcement):
        models = build_served_models(settings, command.setting_names, folder)
        config = unattended(settings, models)
        async with running_parts(engine_parts(models, folder)) as parts, AsyncExitStack() as stack:
            ready = stack.enter_async_context(engine_backend(config))
            backend = await parts.until(ready, START_SECONDS)
            announce(announcement, models)
            yield backend


def result_options(command: ServeCommand) -> dict[str, str]:
    """Name the models, which are downloaded, and their settings that change results. Raises
    ModelSourceError."""
    options = {flag_name("default_model"): str(command.settings.default_model)}
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
    """The seconds that the matrix products of these tokens alone take on the engine's GPUs. None
    but for a single generator in 16 bits on measured GPUs."""
    execution, gpus = models[0].execution, gpu_names()
    stages = sum(engine.execution.num_stages for engine in models[0].engines)
    if len(models) > 1 or execution.task != "generate" or execution.dtype == "float32":
        return None
    if execution.device_type != "cuda" or not gpus or not all(_GPU in gpu for gpu in gpus):
        return None
    return 2 * products(execution.model, computed, sampled) / (_FLOPS * stages)


def products(model: ModelConfig, computed: int, sampled: int) -> float:
    """Multiplications in the layers, and in the LM head for each sampled token."""
    head = model.vocab_size * model.hidden_size
    return model.layer_numbers * computed + head * sampled
