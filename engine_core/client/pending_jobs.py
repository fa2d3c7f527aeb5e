"""A client's jobs while they run: what they have been told, and who waits for it."""

import asyncio
from typing import Protocol, Self, cast

import msgspec
import numpy as np
import numpy.typing as npt

from engine_core.messages import (
    Abort,
    Accepted,
    EndRow,
    FailureCode,
    RowOutput,
    Vectors,
)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

MAX_STATE_NUMBERS = 1 << 22
"""Of a job that asks for token states: as text, some 80 MB."""

MAX_SPARSE_ENTRIES = 1 << 21
"""What is not zero in all vectors of a job. Only a model that is not sparse comes near: a row of a
few tokens may then have as many as its vocabulary."""


class EngineError(Exception):
    """A job's terminal failure, as the engine (or the loss of the engine) reported it.

    `retry_after` is the expected wait, in seconds, for which the job was refused.
    """

    def __init__(
        self,
        code: FailureCode,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code: FailureCode = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


class Encoded(msgspec.Struct, frozen=True):
    """An encode job's answer: vectors float32[N, D], the token count of each of the N items.

    `dropped` counts the tokens that were cut off each item; it is empty where nothing was.
    Of sparse vectors there is what is not zero: float32[E, 2] of indices, ascending in an item, and
    values, and how many are each item's, `counts`.
    """

    vectors: FloatArray
    prompt_tokens: list[int]
    dropped: list[int] = []
    counts: list[int] = []


class PendingJob:
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


class JobClient(Protocol):
    """What a running job needs of the client that submitted it."""

    def send(self, message: msgspec.Struct) -> None:
        """Send to the engine, unless it is gone."""
        ...

    def forget(self, job: int) -> None:
        """No more news of this job are wanted."""
        ...


class GenerateStream(PendingJob):
    """The rows of one generate job, as they come. Leaving the context aborts what still runs."""

    def __init__(self, client: JobClient, job: int, rows: int) -> None:
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
            self._wake_reader()
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


class EncodeCall(PendingJob):
    """The rows of one encode job, gathered into one array."""

    def __init__(self, rows: int, vector_size: int) -> None:
        super().__init__()
        self.vectors: FloatArray = np.empty((rows, vector_size), np.float32)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._missing = rows

    def push(self, part: Vectors) -> bool:
        """Place finished rows; True once none is missing."""
        if self.done.done():
            return False  # it has failed here; the engine has yet to hear of that
        rows = np.frombuffer(part.rows, np.int32)
        data = np.frombuffer(part.data, np.float32).reshape(-1, self.vectors.shape[1])
        self.place(rows, data, part)
        self._missing -= len(rows)
        if self._missing == 0 and not self.done.done():
            self.done.set_result(None)
        return self._missing == 0

    def place(self, rows: IntArray, data: FloatArray, part: Vectors) -> None:
        """Put the results of `rows` where they belong: `data`, as numbers, of `part`."""
        self.vectors[rows] = data

    def result(self, accepted: Accepted) -> Encoded:
        """The answer, once it is whole."""
        return Encoded(self.vectors, accepted.prompt_tokens, accepted.dropped)

    def fail(self, error: EngineError) -> None:
        super().fail(error)
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()


class StatesCall(EncodeCall):
    """The token states of one encode job: `vectors` is float32[T, D], item after item."""

    def __init__(self, rows: int, vector_size: int) -> None:
        super().__init__(rows, vector_size)
        self._offsets: list[int] = [0]

    def accept(self, message: Accepted) -> None:
        super().accept(message)
        ends: list[int] = np.cumsum(message.prompt_tokens).tolist()
        self._offsets = [0, *ends]
        size = self.vectors.shape[1]
        if (numbers := ends[-1] * size) > MAX_STATE_NUMBERS:
            text = f"{numbers} numbers; an answer takes {MAX_STATE_NUMBERS}: ask for fewer at once"
            self.fail(EngineError("too_large", text))
        else:
            self.vectors = np.empty((ends[-1], size), np.float32)

    def place(self, rows: IntArray, data: FloatArray, part: Vectors) -> None:
        read, places = 0, cast("list[int]", rows.tolist())
        for row in places:
            first, last = self._offsets[row], self._offsets[row + 1]
            self.vectors[first:last] = data[read : read + last - first]
            read += last - first


class SparseCall(EncodeCall):
    """The rows of one encode job whose vectors are sparse."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 2)
        self._entries: list[FloatArray] = [self.vectors[:0]] * rows
        self._room = MAX_SPARSE_ENTRIES

    def push(self, part: Vectors) -> bool:
        self._room -= len(part.data) // 8
        if self._room >= 0:
            return super().push(part)
        self._entries.clear()
        message = f"more than {MAX_SPARSE_ENTRIES} entries in all vectors: ask for fewer at once"
        self.fail(EngineError("too_large", message))
        return False

    def place(self, rows: IntArray, data: FloatArray, part: Vectors) -> None:
        places = cast("list[int]", rows.tolist())
        counts = np.frombuffer(part.counts, np.int32)
        for row, entries in zip(places, np.split(data, np.cumsum(counts)[:-1]), strict=True):
            self._entries[row] = entries

    def result(self, accepted: Accepted) -> Encoded:
        counts = [len(entries) for entries in self._entries]
        vectors = np.concatenate(self._entries)
        return Encoded(vectors, accepted.prompt_tokens, accepted.dropped, counts)
