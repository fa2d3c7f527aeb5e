"""The client that a server process (or any asyncio program) holds for one engine core."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from engine_core.client.pending_jobs import (
    ONLY_VECTOR,
    EncodeCall,
    Encoded,
    GenerateStream,
    OfTokens,
    Read,
    ReadCall,
    ResultT,
    RowsCall,
)
from engine_core.loop.transport import AsyncDealer
from engine_core.messages import (
    Abort,
    Beat,
    EncodeJob,
    EngineInfo,
    Failed,
    FromCore,
    GenerateJob,
    Hello,
    JobMessage,
    JobOptions,
    Outputs,
    ReadJob,
    SamplingParams,
)
from engine_core.refusal import RefusalError

_SHARE_OF_WAIT, _MOST_SECONDS = 0.05, 0.25
"""How long a refusal holds: a share of the expected wait, with a bound in seconds. The queue does
not run empty meanwhile."""


class CircuitBreaker:
    """Refuses an API key's jobs for a while after the engine has refused one like them.

    Then one job probes the engine, and others are refused for as long again, or until it is
    accepted. If none comes to probe for that long, the refusal is forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusal: RefusalError | None = None
        self._priority = 0
        self._until = self._seconds = 0.0

    def refuses(self, priority: int) -> bool:
        """Whether a job is refused: it would begin no earlier than the one that was."""
        refused = self._refusal is not None and priority >= self._priority
        return refused and self._clock() < self._until

    def check(self, priority: int) -> None:
        """Raises RefusalError for a job that is refused."""
        if self._refusal is not None and self.refuses(priority):
            raise self._refusal.copy()

    def probe(self, priority: int) -> bool:
        """Whether a job to be sent is the probe. Raises RefusalError as `check` does."""
        self.check(priority)
        if self._refusal is None or priority < self._priority:
            return False
        now = self._clock()
        if now > self._until + self._seconds:
            self._refusal = None
            return False
        self._until = now + self._seconds
        return True

    def accepted(self) -> None:
        self._refusal = None

    def refused(self, priority: int, refusal: RefusalError) -> None:
        self._refusal, self._priority = refusal.copy(), priority
        self._seconds = min(_SHARE_OF_WAIT * (refusal.retry_after or 0.0), _MOST_SECONDS)
        self._until = self._clock() + self._seconds


_NO_OPTIONS = JobOptions()


class EngineClient:
    """Jobs out, updates in, over one socket. Use from one asyncio loop only.

    `beat` came at `beat_at` (time.monotonic). `rows` are those of its jobs, the newest of which was
    sent at `sent_at`. With `batch` all rows are of the batch band.
    """

    def __init__(self, endpoint: str, *, returns: bool = False) -> None:
        """An engine core that stops, with which all jobs fail, `returns`, or is `dead` for ever."""
        self._returns = returns
        self.info: EngineInfo | None = None
        self.beat: Beat | None = None
        self.beat_at = self.sent_at = 0.0
        self.rows = 0
        self.dead = False
        self.batch = False
        self._over: RefusalError | None = None
        self.breakers: defaultdict[int, CircuitBreaker] = defaultdict(CircuitBreaker)
        self._endpoint = endpoint
        self._ids = itertools.count(1)
        self._jobs: dict[int, GenerateStream | RowsCall[Any]] = {}
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self._ready = asyncio.Event()
        self._dealer: AsyncDealer | None = None

    def start(self) -> None:
        """Connect and send `Hello`. The engine need not be up yet."""
        self._dealer = AsyncDealer(self._endpoint, self._receive, self._lost)
        self.send(Hello())

    @property
    def is_ready(self) -> bool:
        """Whether the engine is there, and has all its stages."""
        has_stages = self.beat is None or self.beat.has_stages
        return self.info is not None and not self.dead and has_stages

    def close(self) -> None:
        """Disconnect. Running jobs fail here, and are aborted in the engine."""
        if self._dealer is not None:
            self.abort_all(RefusalError("draining", "the server is shutting down"))
            self._dealer.close()

    async def wait_ready(self) -> EngineInfo:
        """Wait until the engine serves. Raises RefusalError if it dies first."""
        await self._ready.wait()
        if self.info is None:
            raise self._death()
        return self.info

    async def generate(
        self,
        params: SamplingParams,
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        n: int = 1,
        options: JobOptions = _NO_OPTIONS,
        deadline: float | None = None,
    ) -> GenerateStream:
        """Submit prompts (texts or int32 ids as bytes), and wait until the engine accepts them.

        Without an answer by the `deadline` (loop time), the stream has ended, without any prompt.
        Raises RefusalError. Cancelling aborts the job.
        """
        texts, ids = texts or [], ids or []
        job = next(self._ids)
        stream = GenerateStream(job, (len(texts) + len(ids)) * n, self.send, self.forget)
        message = GenerateJob(
            job,
            params=params,
            texts=texts,
            ids=ids,
            n=n,
            batch=self.batch,
            **msgspec.structs.asdict(options),
        )
        try:
            async with asyncio.timeout_at(deadline):
                await self._submit(stream, message)
        except TimeoutError:
            return GenerateStream(job, 0, self.send, self.forget)
        return stream

    async def encode(
        self,
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        query: str | list[str] | None = None,
        instruction: str | None = None,
        of_tokens: OfTokens = ONLY_VECTOR,
        admit: Callable[[int], None] = lambda _: None,
        options: JobOptions = _NO_OPTIONS,
    ) -> Encoded:
        """Embed or score the items, as `EncodeJob` says. Raises RefusalError. Cancelling aborts.

        Numbers of tokens are gathered once `admit`, which gets their bytes, has not refused them.
        """
        texts, ids = texts or [], ids or []
        info = await self.wait_ready()
        job = next(self._ids)
        call = EncodeCall(len(texts) + len(ids), info, of_tokens, admit)
        message = EncodeJob(
            job,
            texts=texts,
            ids=ids,
            query=query,
            instruction=instruction,
            outputs=of_tokens.outputs,
            marks=of_tokens.marks,
            batch=self.batch,
            **msgspec.structs.asdict(options),
        )
        return await self._result(call, message)

    async def read(
        self,
        *,
        pieces: list[str],
        prompts: list[tuple[int, ...]],
        tokens: list[bytes],
        options: JobOptions = _NO_OPTIONS,
    ) -> Read:
        """Read log-probabilities, as `ReadJob` says. Raises RefusalError. Cancelling aborts."""
        message = ReadJob(
            next(self._ids),
            pieces=pieces,
            prompts=prompts,
            tokens=tokens,
            batch=self.batch,
            **msgspec.structs.asdict(options),
        )
        return await self._result(ReadCall(len(prompts)), message)

    def send(self, message: msgspec.Struct) -> None:
        """Send unless the engine is gone: then every job has failed already."""
        if self._dealer is not None and not self.dead:
            self._dealer.send(message)

    def forget(self, job: int) -> None:
        """Ignore further updates of this job."""
        self._take(job)

    def abort_all(self, error: RefusalError) -> None:
        """Fail every job with `error`, and every later one, and abort them in the engine."""
        self._over = error
        if self._jobs:
            self.send(Abort(list(self._jobs)))
        self._fail_all(error)

    def _fail_all(self, error: RefusalError) -> None:
        for number in list(self._jobs):
            self._fail_one(number, error)

    def _fail_one(self, number: int, error: RefusalError) -> None:
        if (job := self._take(number)) is not None:
            job.fail(error)

    def _take(self, number: int) -> GenerateStream | RowsCall[Any] | None:
        """A job that gets no further updates. None if it is not among the running ones."""
        if (job := self._jobs.pop(number, None)) is not None:
            self.rows -= job.rows
        return job

    async def _result(self, call: RowsCall[ResultT], message: JobMessage) -> ResultT:
        await self._submit(call, message)
        try:
            return await call.done
        except (asyncio.CancelledError, RefusalError) as error:
            self._refused(message, error)
            self._drop(message.id)
            raise

    async def _submit(self, waiting: GenerateStream | RowsCall[Any], message: JobMessage) -> None:
        if self._over is not None:
            raise self._over.copy()
        breaker = self.breakers[message.key.number]
        is_probe = breaker.probe(message.priority)
        self._jobs[message.id] = waiting
        self.rows += waiting.rows
        self.sent_at = time.monotonic()
        self.send(message)
        try:
            await waiting.accepted
        except asyncio.CancelledError:
            self._drop(message.id)
            raise
        except RefusalError as error:
            self._refused(message, error)
            raise
        if is_probe:
            breaker.accepted()

    def _refused(self, message: JobMessage, error: BaseException) -> None:
        """Refuse others like a job that the engine has refused for the time it would wait."""
        if isinstance(error, RefusalError) and error.retry_after is not None:
            self.breakers[message.key.number].refused(message.priority, error)

    def _drop(self, job: int) -> None:
        if self._take(job) is not None:
            self.send(Abort([job]))

    def _receive(self, frame: bytes) -> None:
        message = self._decoder.decode(frame)
        if isinstance(message, Outputs):
            self._dispatch(message)
        elif isinstance(message, Beat):
            self.beat, self.beat_at = message, time.monotonic()
        else:
            self.info = message
            self._ready.set()

    def _dispatch(self, outputs: Outputs) -> None:
        jobs = self._jobs
        for accepted in outputs.accepted:
            if (job := jobs.get(accepted.id)) is not None:
                job.accept(accepted)
        for timing in outputs.timings:
            if (job := jobs.get(timing.id)) is not None:
                job.time(timing)
        for output in outputs.rows:
            if isinstance(stream := jobs.get(output.job), GenerateStream):
                stream.push(output)
        for part in outputs.encoded:
            if isinstance(call := jobs.get(part.job), RowsCall) and call.push(part):
                self.forget(part.job)
        self._fail(outputs.failed)

    def _fail(self, refusals: list[Failed]) -> None:
        for failed in refusals:
            error = RefusalError(failed.code, failed.message, failed.param, failed.retry_after)
            self._fail_one(failed.id, error)
        # A dying engine fails its jobs first; its socket closes only a moment later.
        if any(failed.code == "engine_dead" for failed in refusals):
            self._lost()

    def _lost(self) -> None:
        if not self._returns:
            self.dead = True
            self._ready.set()
            self.abort_all(self._death())
        elif self._dealer is not None:
            # Not over the same socket: another core has never heard of what it still holds.
            self._dealer.close()
            self.info = self.beat = None
            self._ready.clear()
            self._fail_all(self._death())
            self.start()

    def _death(self) -> RefusalError:
        return RefusalError("engine_dead", "the engine of this model has stopped")
