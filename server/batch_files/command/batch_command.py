"""`penstock batch`: one job, from its flags to an exit code."""

import asyncio
import signal
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import uvloop

from server.batch_files.batch_lines import BESIDE_BODY, LineRules
from server.batch_files.command.floor import floor_seconds
from server.batch_files.command.own_engines import own_engines, result_options
from server.batch_files.file_job import FileJob
from server.batch_files.result_log import JobFileError, NoRoomError
from server.batches.answering import Backend
from server.batches.daemon_backend import daemon_backend
from server.batches.engine_backend import EngineBackend
from server.batches.results import JobStoppedError
from server.bench.results.measurement import Progress
from server.settings.settings import Limits, ServeCommand, api_key_from

_SIGNAL_EXIT = 128


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags say. `command` are the models, or None with a daemon at `url`."""

    source: Path
    output: Path
    resume: bool
    url: str | None
    command: ServeCommand | None


def run_batch(options: BatchOptions) -> int:
    """The command: its exit code. Raises one of `server.daemon.daemon.START_ERRORS`."""
    try:
        _check_output(options)
        return uvloop.run(_run(options, _job_of(options)))
    except (JobFileError, JobStoppedError) as error:
        kept = isinstance(error, NoRoomError)
        advice = "; what is done is kept, and --resume goes on from there" if kept else ""
        print(f"penstock: error: {error}{advice}", file=sys.stderr)
        return 1


def _check_output(options: BatchOptions) -> None:
    """Raises JobFileError for what would only be found at the end."""
    output, log = options.output, _log_beside(options.output)
    if output.is_dir():
        raise JobFileError(f"{output} is a folder")
    if output.exists() and output.samefile(options.source):
        raise JobFileError(f"{output} is the input")
    if options.resume and output.exists() and not log.exists():
        raise JobFileError(f"{output} is complete: there is no {log}")


def _log_beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")


def _job_of(options: BatchOptions) -> FileJob:
    command = options.command
    limits = Limits() if command is None else command.settings
    return FileJob(
        options.source,
        _log_beside(options.output),
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
    """SIGINT and SIGTERM cancel the running task from now on; the list gets their numbers."""
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
    """Answer what is left, with a line that shows how far it is. What the summary ends with: how
    much of the time the matrix products alone would take, where that is known."""
    summary, before = job.summary, msgspec.structs.replace(job.summary)
    progress = Progress(
        options.source.name,
        "requests",
        summary.requests - summary.earlier,
        lambda: summary.done - summary.earlier,
        lambda: f"{summary.saved_share:.1%} of prompt tokens saved" if summary.completed else "",
    )
    async with _backend(options) as backend:
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


def _backend(options: BatchOptions) -> AbstractAsyncContextManager[Backend]:
    if options.command is not None:
        return own_engines(options.command)
    return daemon_backend(str(options.url), api_key_from())


def _keep(options: BatchOptions, job: FileJob) -> None:
    """The job ends early: what is done is in the output, and in the log for another time."""
    job.assemble(options.output)
    job.close()
    print(
        f"{job.summary.done:,} of {job.summary.requests:,} requests are in {options.output}; "
        "--resume goes on from here",
        file=sys.stderr,
    )
