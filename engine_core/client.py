"""The client that a server process (or any asyncio program) holds for one engine core."""

import asyncio
import itertools
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from engine_core.messages import (
    Abort,
    Accepted,
    Beat,
    EncodeJob,
    EndRow,
    EngineInfo,
    FailureCode,
    FromCore,
    GenerateJob,
    Hello,
    Outputs,
    RowOutput,
    SamplingParams,
    Vectors,
)
from engine_core.transport import AsyncDealer

FloatArray = npt.NDArray[np.float32]


class EngineError(Exception):
    """A job's terminal failure, as the engine (or the loss of the engine) reported it."""

    def __init__(self, code: FailureCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.param = param


class Encoded(msgspec.Struct, frozen=True):
    """An encode job's answer: vectors float32[N, D], the token count of each of the N items."""

    vectors: FloatArray
    prompt_tokens: list[int]


class _Job:
    """What every job awaits first: accepted, or failed."""

    def __init__(self) -> None:
        self.accepted: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()

    def accept(self, message: Accepted) -> None:
        if not self.accepted.done():
            self.accepted.set_result(message)

    def fail(self, error: EngineError) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(error)
            # The waiter may have been cancelled already: the error then has no reader.
            self.accepted.exception()


class GenerateStream(_Job):
    """The rows of one generate job, as they come. Leaving the context aborts what still runs."""

    def __init__(self, client: "EngineClient", job: int, rows: int) -> None:
        super().__init__()
        self.prompt_tokens: list[int] = []
        self.prompt_ids: list[bytes] = []
        self._client = client
        self._id = job
        self._open_rows = set(range(rows))
        self._news: list[RowOutput] = []
        self._error: EngineError | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Every row has ended, or the job has failed."""
        return not self._open_rows or self._error is not None

    async def next(self) -> list[RowOutput]:
        """All news since the last call, at least one; empty once everything has been told.

        Raises EngineError if the job failed, after the news that came before.
        """
        if not self._news and not self.finished:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        news, self._news = self._news, []
        if not news and self._error is not None:
            raise self._error
        return news

    def end_row(self, row: int) -> None:
        """Stop one row here and in the engine (a stop string was met). Idempotent."""
        if row in self._open_rows:
            self._client.send(EndRow(self._id, row))
            self._close_row(row)

    def abort(self) -> None:
        """Stop every row that still runs. Idempotent, harmless once finished."""
        if not self.finished:
            self._client.send(Abort([self._id]))
            self._open_rows.clear()
        self._client.forget(self._id)

    def push(self, output: RowOutput) -> None:
        """News from the engine."""
        if output.row not in self._open_rows:
            return
        self._news.append(output)
        if output.finish is not None:
            self._close_row(output.row)
        self._wake_reader()

    def fail(self, error: EngineError) -> None:
        super().fail(error)
        self._error = error
        self._wake_reader()

    def _close_row(self, row: int) -> None:
        self._open_rows.discard(row)
        if not self._open_rows:
            self._client.forget(self._id)

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class _EncodeCall(_Job):
    """The rows of one encode job, gathered into one array."""

    def __init__(self, rows: int, vector_size: int) -> None:
        super().__init__()
        self.vectors: FloatArray = np.empty((rows, vector_size), np.float32)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing = rows

    def push(self, part: Vectors) -> bool:
        """Place finished rows; True once none is missing."""
        rows = np.frombuffer(part.rows, np.int32)
        self.vectors[rows] = np.frombuffer(part.data, np.float32).reshape(len(rows), -1)
        self._missing -= len(rows)
        if self._missing == 0 and not self.done.done():
            self.done.set_result(None)
        return self._missing == 0

    def fail(self, error: EngineError) -> None:
        super().fail(error)
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()


class EngineClient:
    """Jobs in, news out, over one socket. Use from one asyncio loop only."""

    def __init__(self, endpoint: str) -> None:
        self.info: EngineInfo | None = None
        self.beat: Beat | None = None
        self.dead = False
        self._endpoint = endpoint
        self._ids = itertools.count(1)
        self._jobs: dict[int, GenerateStream | _EncodeCall] = {}
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self._ready = asyncio.Event()
        self._beat_at = 0.0
        self._dealer: AsyncDealer | None = None

    async def start(self) -> None:
        """Connect and introduce ourselves; the engine need not be up yet."""
        self._dealer = AsyncDealer(self._endpoint, self._receive, self._lost)
        self.send(Hello())

    def close(self) -> None:
        """Leave. Jobs that still run fail here; the engine aborts them when it notices."""
        if self._dealer is not None:
            self.abort_all(EngineError("draining", "the server is shutting down"))
            self._dealer.close()

    async def wait_ready(self) -> EngineInfo:
        """Wait until the engine serves. Raises EngineError if it dies first."""
        await self._ready.wait()
        if self.info is None:
            raise self._death()
        return self.info

    def beat_age(self) -> float:
        """Seconds since the engine's last heartbeat."""
        return asyncio.get_running_loop().time() - self._beat_at

    async def generate(
        self,
        params: SamplingParams,
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        n: int = 1,
    ) -> GenerateStream:
        """Submit prompts (texts or int32 ids as bytes); returns once the engine accepted them.

        Raises EngineError if it refused them. Cancelling the wait aborts the job.
        """
        texts, ids = texts or [], ids or []
        job = next(self._ids)
        stream = GenerateStream(self, job, (len(texts) + len(ids)) * n)
        accepted = await self._submit(job, stream, GenerateJob(job, params, texts, ids, n))
        stream.prompt_tokens = accepted.prompt_tokens
        stream.prompt_ids = accepted.prompt_ids
        return stream

    async def encode(
        self,
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        query: str | None = None,
    ) -> Encoded:
        """Embed the items, or score each text against `query`; waits for all of them.

        Raises EngineError if the engine refused or failed the job. Cancelling aborts it.
        """
        texts, ids = texts or [], ids or []
        info = await self.wait_ready()
        job = next(self._ids)
        call = _EncodeCall(len(texts) + len(ids), info.vector_size)
        accepted = await self._submit(job, call, EncodeJob(job, texts, ids, query))
        try:
            await call.done
        except asyncio.CancelledError:
            self._drop(job)
            raise
        return Encoded(call.vectors, accepted.prompt_tokens)

    def send(self, message: msgspec.Struct) -> None:
        """Send unless the engine is gone: then every job has its answer already."""
        if self._dealer is not None and not self.dead:
            self._dealer.send(message)

    def forget(self, job: int) -> None:
        """No more news of this job are wanted."""
        self._jobs.pop(job, None)

    def abort_all(self, error: EngineError) -> None:
        """End every job here with `error`, and in the engine."""
        jobs, self._jobs = self._jobs, {}
        if jobs:
            self.send(Abort(list(jobs)))
        for job in jobs.values():
            job.fail(error)

    async def _submit(
        self, job: int, waiting: GenerateStream | _EncodeCall, message: msgspec.Struct
    ) -> Accepted:
        if self.dead:
            raise self._death()
        self._jobs[job] = waiting
        self.send(message)
        try:
            return await waiting.accepted
        except asyncio.CancelledError:
            self._drop(job)
            raise

    def _drop(self, job: int) -> None:
        if self._jobs.pop(job, None) is not None:
            self.send(Abort([job]))

    def _receive(self, frame: bytes) -> None:
        message = self._decoder.decode(frame)
        if isinstance(message, Outputs):
            self._dispatch(message)
            return
        self._beat_at = asyncio.get_running_loop().time()
        if isinstance(message, Beat):
            self.beat = message
        else:
            self.info = message
            self._ready.set()

    def _dispatch(self, outputs: Outputs) -> None:
        jobs = self._jobs
        for accepted in outputs.accepted:
            if (job := jobs.get(accepted.id)) is not None:
                job.accept(accepted)
        for output in outputs.rows:
            if isinstance(stream := jobs.get(output.job), GenerateStream):
                stream.push(output)
        for part in outputs.vectors:
            if isinstance(call := jobs.get(part.job), _EncodeCall) and call.push(part):
                self.forget(part.job)
        for failed in outputs.failed:
            # The engine says so with its last breath; its socket closes only a moment later.
            self.dead |= failed.code == "engine_dead"
            if (job := jobs.pop(failed.id, None)) is not None:
                job.fail(EngineError(failed.code, failed.message, failed.param))

    def _lost(self) -> None:
        self.dead = True
        self._ready.set()
        self.abort_all(self._death())

    def _death(self) -> EngineError:
        return EngineError("engine_dead", "the engine of this model has stopped")
