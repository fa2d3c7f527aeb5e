"""The batch process: `python -P -m server.batches.batch_process CONFIG.json`.

CONFIG.json holds the ServerConfig of the API processes. There is one batch process, whatever their
number. SIGTERM ends it; what it was doing goes on at the next start.
"""

import asyncio
import hashlib
import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop

from engine_core.refusal import RefusalError
from server.batches.answering import Backend
from server.batches.engine_backend import engine_backend
from server.batches.file_job import BESIDE_BODY, FileJob, LineError, LineRules
from server.batches.result_log import InputError, JobFileError, NoRoomError
from server.batches.results import JobStoppedError
from server.batches.state.database import StateFolderError
from server.batches.state.state_folder import StateFolder
from server.batches.state.stored_batches import EXPIRED, BatchError, Status, StoredBatch
from server.batches.state.stored_files import StoredFile
from server.event_loop import keep_beating, lasting_task
from server.observe.processes import BatchState
from server.settings.api_keys import ClientKeys
from server.settings.settings import ServerConfig, unattended
from workers.contract.process import exit_with_parent, open_log

_log = logging.getLogger("penstock")

_POLL_S = 0.2
_EXPIRY_S = 60.0
_EXPIRED = LineError(EXPIRED, "the batch's time was over before this line was answered")
_MOST_ROOM = 16 << 20
"""The most bytes that a batch waits for."""
RETRY_S = 5.0

STORAGE_FAULTS = (StateFolderError, sqlite3.OperationalError, NoRoomError, OSError)
"""A full or failing disk, a database that is gone or replaced: batches wait."""
_SHARE = 0.5
"""The part of an engine's room that batches may take, beside online requests."""


class BatchHealth:
    """Whether batches run or wait, at first the latter. The first reason for that is logged."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        self._state = BatchState(file)
        self._reason = ""
        self.runs = False

    def wait(self, reason: object) -> None:
        if not self._reason:
            self._reason = str(reason)
            _log.warning("files and batches wait (--state-dir): %s", reason)
        self._set(runs=False)

    def run(self) -> None:
        if self._reason:
            self._reason = ""
            _log.info("files and batches go on")
        self._set(runs=True)

    def _set(self, *, runs: bool) -> None:
        self.runs = runs
        self._state.set(runs=runs)


async def run_batches(config: ServerConfig) -> None:
    """Run until SIGTERM, which also comes when an engine is lost."""
    running = asyncio.current_task()
    assert running is not None, "a task runs this"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    assert config.state.folder is not None, "only then is there a batch process"
    assert config.batch_file is not None, "the same"
    beating = lasting_task(keep_beating(), "heartbeat")
    health = BatchHealth(Path(config.batch_file))
    state = await _opened(Path(config.state.folder), config.state.token, health)
    # Uploads have been authorized. Lines need no key, and are in no metrics, logs or traces.
    try:
        settings = unattended(config, config.models, config.state.secret)
        async with engine_backend(settings, _SHARE) as backend:
            keys = ClientKeys(config.api_keys, config.cache_secret, config.share_prefixes)
            runner = BatchRunner(
                state,
                backend,
                config.max_body_size,
                health,
                lambda owner: backend.act_for(keys.of_owner(owner)),
            )
            while True:
                with suppress(JobStoppedError):  # the supervisor says what is lost
                    await runner.run()
                await asyncio.sleep(RETRY_S)
    except RefusalError:
        await asyncio.get_running_loop().create_future()  # the same
    finally:
        beating.cancel()
        state.close()


async def _opened(folder: Path, token: int, health: BatchHealth) -> StateFolder:
    while True:
        try:
            return StateFolder(folder, token)
        except StateFolderError as error:
            health.wait(error)
        await asyncio.sleep(RETRY_S)


class BatchRunner:
    """Runs stored batches, the oldest first, each from the results that are on the disk."""

    def __init__(
        self,
        state: StateFolder,
        backend: Backend,
        max_body_size: int,
        health: BatchHealth,
        on_owner: Callable[[str], None],
    ) -> None:
        """`on_owner` is called with the owner of each batch before it runs."""
        self._state, self._on_owner = state, on_owner
        self._backend = backend
        self._max_line_bytes = max_body_size + BESIDE_BODY
        self._expiry_due = 0.0
        self._health = health
        self._needed = 0

    async def run(self) -> None:
        """Run until cancelled. Raises JobStoppedError if the engines are lost."""
        while True:
            try:
                await self._turn()
            except STORAGE_FAULTS as error:
                self._health.wait(error)
                if isinstance(error, NoRoomError):
                    self._needed = min(error.num_bytes, _MOST_ROOM)
                await asyncio.sleep(RETRY_S)

    async def _turn(self) -> None:
        """Run the next batch, if there is one and the disk can be written, or if it is to end: that
        may free room. Raises as `run`, and one of STORAGE_FAULTS."""
        await self._drop_expired()
        batch = await asyncio.to_thread(self._state.batches.next_open)
        if not self._health.runs and not (batch is not None and is_to_end(batch)):
            await asyncio.to_thread(self._state.database.probe, self._needed)
            self._health.run()
        if batch is None:
            await asyncio.sleep(_POLL_S)
        else:
            self._on_owner(batch.owner)
            rules = LineRules(max_line_bytes=self._max_line_bytes, endpoint=batch.endpoint)
            await _BatchRun(self._state, batch, rules, self._drop_expired).run(self._backend)

    async def _drop_expired(self) -> None:
        """Delete what has expired, once a minute. Raises one of STORAGE_FAULTS."""
        if time.monotonic() >= self._expiry_due:
            self._expiry_due = time.monotonic() + _EXPIRY_S
            await asyncio.to_thread(self._state.drop_expired)


class _BatchRun:
    """One batch, from its present state to its end."""

    def __init__(
        self,
        state: StateFolder,
        batch: StoredBatch,
        rules: LineRules,
        often: Callable[[], Awaitable[None]],
    ) -> None:
        """`often` is called several times a second."""
        self._state, self._batch, self._often = state, batch, often
        self._log = state.jobs / batch.id
        source = state.files.path(batch.input_file_id)
        self._job = FileJob(source, self._log, rules=rules, options={})

    async def run(self, backend: Backend) -> None:
        """Run the batch to its end. Raises as `BatchRunner.run`, or one of STORAGE_FAULTS."""
        try:
            await self._job.open(resume=True)
            await self._answer(backend)
        except InputError as error:
            await self._fail("input_unreadable", "the input file is gone, or cannot be read", error)
        except (NoRoomError, sqlite3.OperationalError) as error:
            await self._wait_for_room(error)
        except JobFileError as error:
            await self._fail("storage_full", "the server could not store the results", error)
        finally:
            self._job.close()

    async def _wait_for_room(self, error: Exception) -> None:
        """Raise `error`, unless the batch is to end: then it fails, which frees its room."""
        batch = await asyncio.to_thread(self._state.batches.get, self._batch.id, self._batch.owner)
        if batch is None or not is_to_end(batch):
            raise error
        await self._fail("storage_full", "the server had no room for the results", error)

    async def _answer(self, backend: Backend) -> None:
        batches, batch = self._state.batches, self._batch
        if not self._job.summary.requests:
            await self._fail("empty_file", "the input file has no lines", "it has no lines")
            return
        await asyncio.to_thread(
            batches.enter, batch.id, "in_progress", "validating", model=self._job.model
        )
        work = asyncio.create_task(self._job.run(backend))
        try:
            ended = await self._watch(work)
        finally:
            work.cancel()
            (failure,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(failure, Exception):  # its last results could not be written
            raise failure
        await asyncio.to_thread(self._finish, ended)

    async def _watch(self, work: asyncio.Task[None]) -> Status:
        """Store the progress until the batch is done, cancelled or late: its next status."""
        batches, batch, done = self._state.batches, self._batch, self._job.summary
        while True:
            await asyncio.wait([work], timeout=_POLL_S)
            await asyncio.to_thread(
                batches.count, batch.id, done.requests, done.completed, done.failed
            )
            await self._often()
            if work.done():
                work.result()
                return "completed"
            if await asyncio.to_thread(batches.status, batch.id) == "cancelling":
                return "cancelled"
            if time.time() >= batch.expires_at:
                return "expired"

    def _finish(self, status: Status) -> None:
        """Give the client the results. Raises JobFileError."""
        batches, batch, files = self._state.batches, self._batch, self._state.files
        batches.enter(batch.id, "finalizing", "in_progress")
        output, errors = self._output_ids
        self._job.assemble(
            files.path(output),
            files.path(errors),
            unfinished=_EXPIRED if status == "expired" else None,
        )
        done = self._job.summary
        good, bad = self._made(output, "output"), self._made(errors, "error")
        batches.end(
            batch.id,
            status,
            [file for file in (good, bad) if file],
            output_file_id=good and good.id,
            error_file_id=bad and bad.id,
            completed=done.completed,
            failed=done.failed,
        )
        self._job.remove()

    def _made(self, file_id: str, what: str) -> StoredFile | None:
        """Make a stored file of results. An empty one is removed."""
        batch, path = self._batch, self._state.files.path(file_id)
        size = path.stat().st_size
        if not size:
            path.unlink()
            return None
        now, kept = int(time.time()), batch.output_seconds
        return StoredFile(
            id=file_id,
            owner=batch.owner,
            filename=f"{batch.id}_{what}.jsonl",
            purpose="batch_output",
            bytes=size,
            created_at=now,
            expires_at=None if kept is None else now + kept,
        )

    @property
    def _output_ids(self) -> tuple[str, str]:
        """The ids of the output and of the errors, the same in every attempt."""
        output, errors = (
            hashlib.blake2b(f"{self._batch.id} {what}".encode(), digest_size=12).hexdigest()
            for what in ("output", "errors")
        )
        return f"file-{output}", f"file-{errors}"

    async def _fail(self, code: str, message: str, reason: object) -> None:
        """End the batch without results, after freeing its room on the disk."""
        _log.warning("batch %s: %s", self._batch.id, reason)
        for path in (self._log, *map(self._state.files.path, self._output_ids)):
            path.unlink(missing_ok=True)
        errors = msgspec.json.encode([BatchError(code, message)]).decode()
        await asyncio.to_thread(
            self._state.batches.end, self._batch.id, "failed", [], errors=errors
        )


def is_to_end(batch: StoredBatch) -> bool:
    """True if its client has cancelled it, or its time is over."""
    return batch.status == "cancelling" or time.time() >= batch.expires_at


def main() -> None:
    os.umask(0o077)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    exit_with_parent()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ServerConfig)
    open_log("batches", config.log_level)
    with suppress(asyncio.CancelledError):
        uvloop.run(run_batches(config))


if __name__ == "__main__":
    main()
