"""A client's jobs while they run: the updates that have come, and their waiting callers."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine_core.messages import (
    Abort,
    Accepted,
    EncodedRows,
    EndRow,
    EngineInfo,
    JobTiming,
    Marks,
    Output,
    RowOutput,
)
from engine_core.refusal import RefusalError

FloatArray = npt.NDArray[np.float32]
ResultT = TypeVar("ResultT")

_UPDATE_BYTES, _ALTERNATIVE_BYTES = 512, 8


class Outcome(Generic[ResultT]):
    """Awaited for a result that comes once, or raises the RefusalError that comes in its place."""

    def __init__(self) -> None:
        self._future: asyncio.Future[ResultT | RefusalError] = asyncio.Future()

    def __await__(self) -> Generator[Any, None, ResultT]:
        outcome = yield from self._future.__await__()
        if isinstance(outcome, RefusalError):
            raise outcome.copy()
        return outcome

    def done(self) -> bool:
        """Whether the result has come, or nobody waits for it any more."""
        return self._future.done()

    def set(self, outcome: ResultT | RefusalError) -> None:
        """Set the outcome once. Later calls do nothing."""
        if not self._future.done():
            self._future.set_result(outcome)


class PendingJob:
    """A job of `rows` that is first accepted, with an `answer`, or fails. Its `timing` comes with
    its first token, or with its last row."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.answer = Accepted(0, [])
        self.timing: JobTiming | None = None
        self.accepted: Outcome[None] = Outcome()

    def accept(self, message: Accepted) -> None:
        self.answer = message
        self.accepted.set(None)

    def time(self, timing: JobTiming) -> None:
        self.timing = timing

    def fail(self, error: RefusalError) -> None:
        self.accepted.set(error)


class GenerateStream(PendingJob):
    """The rows of one generate job, as they come. Leaving the context aborts what still runs.

    `decode_s` are the seconds from its first token to its end.
    """

    def __init__(
        self,
        job: int,
        rows: int,
        send: Callable[[Abort | EndRow], None],
        forget: Callable[[int], None],
    ) -> None:
        super().__init__(rows)
        self._send, self._forget = send, forget
        self._id = job
        self._open_rows = set(range(rows))
        self._updates: list[RowOutput] = []
        self._error: RefusalError | None = None
        self._changed = asyncio.Event()
        self.decode_s = 0.0
        self._first_token: float | None = None

    @property
    def ended(self) -> bool:
        """Whether every row has ended, or the job has failed."""
        return not self._open_rows or self._error is not None

    def held_bytes(self) -> int:
        """The approximate size of the updates since the last call of `next`."""
        alternatives = max((o.sampled.width for o in self._updates[:1] if o.sampled), default=0)
        return len(self._updates) * (_UPDATE_BYTES + _ALTERNATIVE_BYTES * alternatives)

    async def next(self) -> list[RowOutput]:
        """Wait for the updates since the last call: none once there are no more.

        Raises RefusalError if the job failed, after the updates that came before.
        """
        if not self._updates and not self.ended:
            self._changed.clear()
            await self._changed.wait()
        updates, self._updates = self._updates, []
        if not updates and self._error is not None:
            raise self._error.copy()
        return updates

    def end_row(self, row: int) -> None:
        """Stop one row here and in the engine. Idempotent."""
        if row in self._open_rows:
            self._send(EndRow(self._id, row))
            self._close_row(row)

    def abort(self) -> None:
        """Stop every row that still runs. Idempotent, harmless once ended."""
        if not self.ended:
            self._send(Abort([self._id]))
            self._open_rows.clear()
            self._stop_clock()
            self._changed.set()
        self._forget(self._id)

    def push(self, output: RowOutput) -> None:
        if output.row not in self._open_rows:
            return
        self._updates.append(output)
        if output.finish is not None:
            self._close_row(output.row)
        self._changed.set()

    def time(self, timing: JobTiming) -> None:
        super().time(timing)
        self._first_token = time.perf_counter()

    def fail(self, error: RefusalError) -> None:
        super().fail(error)
        self._error = error
        self._stop_clock()
        self._changed.set()

    def _close_row(self, row: int) -> None:
        self._open_rows.discard(row)
        if not self._open_rows:
            self._stop_clock()
            self._forget(self._id)

    def _stop_clock(self) -> None:
        if self._first_token is not None:
            self.decode_s = time.perf_counter() - self._first_token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class RowsCall(PendingJob, ABC, Generic[ResultT]):
    """A job whose rows come whole, in any order. It is `done` with the last of them."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.done: Outcome[ResultT] = Outcome()

    @abstractmethod
    def push(self, part: EncodedRows) -> bool:
        """Take finished rows. True once none is missing."""

    def fail(self, error: RefusalError) -> None:
        super().fail(error)
        self.done.set(error)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a read job.

    values         float32 of each row: the log-probabilities of its tokens
    prompt_tokens  each row's number of tokens
    piece_tokens   each piece's number of tokens
    cached         tokens of the row that began first that were in the prefix cache. The job had
                   computed none yet, so it counts what rows share once, and nothing of its own.
    timing         the times of the whole job
    """

    values: list[FloatArray]
    prompt_tokens: list[int]
    piece_tokens: list[int]
    cached: int = 0
    timing: JobTiming | None = None


class ReadCall(RowsCall[Read]):
    """The rows of one read job, gathered in their order."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self._missing, self._values = rows, dict[int, FloatArray]()

    def push(self, part: EncodedRows) -> bool:
        rows = np.frombuffer(part.rows, np.int32).tolist()
        ends = np.cumsum(np.frombuffer(part.counts, np.int32))
        values = np.split(np.frombuffer(part.values, np.float32), ends[:-1])
        self._values.update(zip(rows, values, strict=True))
        self._missing -= len(rows)
        if self._missing == 0:
            answer, timing = self.answer, self.timing
            read = Read(
                values=[self._values[row] for row in range(len(self._values))],
                prompt_tokens=answer.prompt_tokens,
                piece_tokens=answer.piece_tokens,
                cached=timing.found if timing else 0,
                timing=timing,
            )
            self.done.set(read)
        return self._missing == 0


MAX_NUMBERS = 1 << 22
"""Numbers in the answer to a job whose rows have any number of them: as text, some 80 MB. An entry
of a sparse vector is two. Only a model that is not sparse comes near."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an encode job of N items.

    values         float32[V, D], item after item: a vector or logits, token states, or the entries
                   (index, value) of a sparse vector.
    counts         each item's number of `values`, if they are of its tokens or entries.
    prompt_ids     each item's ids, int32, for token vectors and weights.
    prompt_tokens  each item's number of tokens.
    dropped        how many tokens were cut off each item. Empty where nothing was.
    timing         the times of the whole job.
    """

    values: FloatArray
    counts: list[int] = []
    prompt_ids: list[bytes] = []
    prompt_tokens: list[int]
    dropped: list[int] = []
    timing: JobTiming | None = None

    @property
    def rows(self) -> list[FloatArray]:
        """The values of each item, where they are counted."""
        return np.split(self.values, np.cumsum(self.counts)[:-1])


Reduce = Callable[[int, FloatArray, bytes], FloatArray]
"""From a row's number, values and ids to one vector."""


class OfTokens(NamedTuple):
    """Outputs of each text's tokens, beside the vector or in its place: `EncodeJob`'s fields.
    With `reduce` each row's are reduced as they come, and not kept."""

    outputs: tuple[Output, ...] = ("vector",)
    marks: Marks | None = None
    reduce: Reduce | None = None


ONLY_VECTOR = OfTokens()


class EncodeCall(RowsCall[Encoded]):
    """The rows of one encode job, gathered in the order of its items."""

    def __init__(
        self,
        rows: int,
        info: EngineInfo,
        of_tokens: OfTokens,
        admit: Callable[[int], None],
    ) -> None:
        """`info` is what the engine says of its model. `admit` gets the bytes of what tokens
        have, and may raise RefusalError."""
        super().__init__(rows)
        self._missing = rows
        outputs = of_tokens.outputs
        self._admit, self._reduce = admit, of_tokens.reduce
        width = sum(info.token_sizes[name] for name in outputs if name != "vector")
        if len(outputs) > 1:
            width = 1
        if info.task == "embed_sparse":
            width = 2  # of an entry, not of the vector, which has as many as the vocabulary
        self._vectors: FloatArray = np.empty((rows, width or info.vector_size), np.float32)
        self._lens, self._dropped = np.zeros((2, rows), np.int32)
        self._ids: dict[int, bytes] = {}
        self._counted: dict[int, FloatArray] = {}  # of rows with more or fewer than one vector
        self._numbers = 0  # in all of these

    def push(self, part: EncodedRows) -> bool:
        if self.done.done():
            return False  # it has failed here, and the engine does not know yet
        rows = np.frombuffer(part.rows, np.int32)
        values = np.frombuffer(part.values, np.float32).reshape(-1, self._vectors.shape[1])
        self._lens[rows] = np.frombuffer(part.lens, np.int32)
        if part.dropped:
            self._dropped[rows] = np.frombuffer(part.dropped, np.int32)
        if part.ids:
            self._ids.update(zip(rows.tolist(), part.ids, strict=True))
        if part.counts:
            ends = np.cumsum(np.frombuffer(part.counts, np.int32))
            self._gather(dict(zip(rows.tolist(), np.split(values, ends[:-1]), strict=True)))
        else:
            self._vectors[rows] = values
        self._missing -= len(rows)
        if self._missing == 0:
            self.done.set(self._result())
        return self._missing == 0

    def _gather(self, own: dict[int, FloatArray]) -> None:
        """Keep the values of rows with any number of them, or fail if they are too many."""
        if (reduce := self._reduce) is not None:
            reduced = {row: reduce(row, each, self._ids[row])[None] for row, each in own.items()}
            self._counted.update(reduced)
            return
        self._counted.update(own)
        self._numbers += sum(each.size for each in own.values())
        try:
            if self._numbers > MAX_NUMBERS:
                text = f"more than {MAX_NUMBERS} numbers in the answer: ask for fewer at once"
                raise RefusalError("too_large", text)
            self._admit(self._numbers * self._vectors.itemsize)
        except RefusalError as error:
            self._counted.clear()
            self.fail(error)

    def _result(self) -> Encoded:
        counted = [self._counted[row] for row in sorted(self._counted)]
        return Encoded(
            values=np.concatenate(counted) if counted else self._vectors,
            counts=list(map(len, counted)),
            prompt_ids=[self._ids[row] for row in sorted(self._ids)],
            prompt_tokens=self._lens.tolist(),
            dropped=self._dropped.tolist() if self._dropped.any() else [],
            timing=self.timing,
        )
