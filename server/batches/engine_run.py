"""One job on one's own engine: sorted, so that what begins alike is side by side, submitted as
there is room, followed to its end."""

import asyncio
import time
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from engine_core.client.pending_jobs import GenerateStream
from engine_core.refusal import RefusalError
from server.batches.base import Put
from server.batches.bundles import Row
from server.batches.posting import failure
from server.batches.requests import generated
from server.batches.results import Generated, JobStoppedError, RequestError
from server.first_error import first_error
from server.generation.completion.completion_choices import CompletionFormat
from server.generation.generation import Generation, submitted
from server.metrics.request_record import RequestRecord
from server.schemas.completions import CompletionChoice
from server.service.registry import Model
from server.service.service import Service

_SECONDS = 1.0
"""Until a row is submitted again whose grammar the engine had no time to compile."""


class Window:
    """Room for so much of a job as is with the engine at once. One task takes, others give
    back."""

    def __init__(self, rows: int, tokens: int) -> None:
        self._most = (rows, tokens)
        self._rows, self._tokens = rows, tokens
        self._changed = asyncio.Event()

    def holds(self, rows: int, tokens: int) -> bool:
        """Whether so much fits while nothing else is in it."""
        return rows <= self._most[0] and tokens <= self._most[1]

    async def take(self, rows: int, tokens: int) -> None:
        """Wait until there is room for so much, which the window must hold."""
        while rows > self._rows or tokens > self._tokens:
            self._changed.clear()
            await self._changed.wait()
        self._rows -= rows
        self._tokens -= tokens

    def give(self, rows: int, tokens: int) -> None:
        """Give back what has been taken."""
        self._rows += rows
        self._tokens += tokens
        self._changed.set()


class EngineRun:
    """The rows of one job."""

    def __init__(self, service: Service, model: Model, put: Put) -> None:
        self._service, self._model, self._put = service, model, put
        bounds = model.served.engine
        self._most = (bounds.max_pending_rows, bounds.max_pending_tokens)
        self._window = Window(*self._most)

    async def run(self, rows: Sequence[Row]) -> None:
        """Compute all of `rows`. Raises JobStoppedError if the engine is gone."""
        with first_error(JobStoppedError):
            async with asyncio.TaskGroup() as tasks:
                for row in sorted(rows, key=attrgetter("ids")):
                    if await self._has_room(row):
                        tasks.create_task(self._follow(row))

    async def _has_room(self, row: Row) -> bool:
        """Wait for it; a row that is too large even alone fails."""
        if self._window.holds(row.plan.width, row.tokens):
            await self._window.take(row.plan.width, row.tokens)
            return True
        rows, tokens = self._most
        message = (
            f"prompt: {row.plan.width} sequences of {row.tokens} tokens; at once an engine takes "
            f"at most {rows} sequences and {tokens} tokens"
        )
        self._put(row.index, RequestError("too_large", message, "prompt"))
        return False

    async def _follow(self, row: Row) -> None:
        try:
            while True:
                try:
                    stream = await submitted(self._model, row.plan)
                    self._put(row.index, await self._generated(row, stream))
                    return
                except RefusalError as error:
                    if error.code != "overloaded":
                        raise
                    await asyncio.sleep(error.retry_after or _SECONDS)
        except RefusalError as error:
            failed = failure(error.code, error.message, error.param)
            if isinstance(failed, JobStoppedError):
                raise failed from None
            self._put(row.index, failed)
        finally:
            self._window.give(row.plan.width, row.tokens)

    async def _generated(self, row: Row, stream: GenerateStream) -> Generated:
        now = time.perf_counter()
        record = RequestRecord(request_id="", started=now)
        with stream:
            generation = Generation(self._service, record, self._model, row.plan, stream, now)
            pieces = await generation.final_pieces()
        form = CompletionFormat(row.body, self._model)
        choices = [await form.choice(piece) for piece in pieces]
        if row.body.logprobs is not None or row.body.prompt_logprobs is not None:
            # Many scores are JSON.
            choices = msgspec.json.decode(msgspec.json.encode(choices), type=list[CompletionChoice])
        return generated(choices, generation.usage())
