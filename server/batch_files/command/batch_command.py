"""`penstock batch`: one job, from its flags to an exit code."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from server.batch_files.answering.daemon_lines import daemon_lines
from server.batch_files.answering.grouped_lines import GroupedLines
from server.batch_files.base import LineBackend
from server.batch_files.batch_lines import LineRules
from server.batch_files.command.floor import floor_seconds
from server.batch_files.command.own_engines import own_engines, result_options
from server.batch_files.counts import Counts
from server.batch_files.file_job import FileJob
from server.batch_files.result_log import JobFileError, NoRoomError
from server.batches.results import JobStoppedError, Sharing
from server.bench.results.measurement import Progress
from server.settings.defaults import MAX_BODY_BYTES
from server.settings.server_config import api_key_from
from server.settings.settings import ServeCommand

_BESIDE_BODY = 1 << 16
"""Bytes of a line that are not its body."""
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
        return uvloop.run(_Batch(options).run())
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


class _Batch:
    """One run of the command."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        command = options.command
        most = MAX_BODY_BYTES if command is None else command.settings.limits.max_body_bytes
        depends_on = {"the model": "a daemon's"} if command is None else result_options(command)
        self._job = FileJob(
            options.source,
            _log_beside(options.output),
            rules=LineRules(max_line_bytes=most + _BESIDE_BODY),
            options=depends_on,
        )
        self._sharing: Sharing = "by token"
        self._floor: float | None = None

    async def run(self) -> int:
        """Its exit code. Raises JobFileError, JobStoppedError, or one of START_ERRORS."""
        stopped: list[int] = []
        main = asyncio.current_task()

        def stop(number: int) -> None:
            stopped.append(number)
            if main is not None:
                main.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        started = time.perf_counter()
        await self._job.open(resume=self._options.resume)
        earlier = msgspec.structs.replace(self._job.counts)
        try:
            if earlier.done < earlier.total:
                await self._answer(earlier)
        except asyncio.CancelledError:
            self._keep()
            return _SIGNAL_EXIT + stopped[0]
        except JobStoppedError as error:
            self._keep()
            raise JobStoppedError(f"{error}; --resume goes on from here") from None
        self._job.assemble(self._options.output)
        self._job.remove()
        seconds = time.perf_counter() - started
        print(summary(self._job.counts, earlier, seconds, self._sharing, self._floor))
        return 0

    async def _answer(self, earlier: Counts) -> None:
        """Answer what is left, with a line that shows how far it is."""
        counts = self._job.counts
        progress = Progress(
            self._options.source.name,
            "requests",
            counts.total - earlier.done,
            lambda: counts.done - earlier.done,
            lambda: f"{counts.saved_share:.1%} of prompt tokens saved" if counts.completed else "",
        )
        async with self._backend() as backend:
            self._sharing = backend.sharing
            async with progress.shown():
                started = time.perf_counter()
                await self._job.run(backend)
                seconds = time.perf_counter() - started
            if isinstance(backend, GroupedLines):
                least = floor_seconds(backend.models, counts.since(earlier))
                self._floor = None if least is None else least / seconds

    @asynccontextmanager
    async def _backend(self) -> AsyncGenerator[LineBackend]:
        options = self._options
        if options.command is not None:
            async with own_engines(options.command) as own:
                yield own
        elif options.url is not None:
            async with daemon_lines(options.url, api_key_from()) as daemon:
                yield daemon

    def _keep(self) -> None:
        """The job ends early: what is done is in the output, and in the log for another time."""
        self._job.assemble(self._options.output)
        self._job.close()
        counts = self._job.counts
        print(
            f"{counts.done:,} of {counts.total:,} requests are in {self._options.output}; "
            "--resume goes on from here",
            file=sys.stderr,
        )


def summary(
    counts: Counts, earlier: Counts, seconds: float, sharing: Sharing, floor: float | None = None
) -> str:
    """A finished job in one line; `earlier` was done by other runs, and `floor` is how much of its
    time the matrix products alone would take, where that is known."""
    bound = "" if floor is None else f"; {floor:.0%} of the floor (matrix products alone)"
    done = counts.done - earlier.done
    before = f", {earlier.done:,} of them earlier" if earlier.done else ""
    return (
        f"{counts.total:,} requests{before} ({counts.failed:,} failed) in {seconds:,.1f} s, "
        f"{done / seconds:,.1f} req/s; {counts.prompt_tokens:,} tokens in, "
        f"{counts.saved_tokens:,} of them saved ({counts.saved_share:.1%}, {sharing}), "
        f"{counts.output_tokens:,} out{bound}"
    )
