"""A client's encode jobs while they run: one call for each kind of answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np

from engine_core.client.pending_jobs import FloatArray, IntArray, Outcome, PendingJob
from engine_core.job_timing import JobTiming
from engine_core.messages import (
    Accepted,
    DenseVectors,
    EncodedRows,
    EngineInfo,
    Scores,
    SparseVectors,
    TokenStates,
)
from engine_core.refusal import RefusalError

MAX_STATE_NUMBERS = 1 << 22
"""Numbers in the answer to a job that requests token states: as text, some 80 MB."""

MAX_SPARSE_ENTRIES = 1 << 21
"""Numbers that are not zero in all vectors of a job. Only a model that is not sparse comes near: a
row of a few tokens may then have as many as its vocabulary."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer to an encode job of N items says: the token count of each item.

    `dropped` counts the tokens that were cut off each item; it is empty where nothing was. `timing`
    is that of the whole job.
    """

    prompt_tokens: list[int]
    dropped: list[int] = []
    timing: JobTiming | None = None


class EncodedVectors(Encoded, frozen=True, kw_only=True):
    """float32[N, D]: a vector an item."""

    vectors: FloatArray


class EncodedStates(Encoded, frozen=True, kw_only=True):
    """float32[T, D]: the state of each token, item after item."""

    states: FloatArray


class EncodedSparse(Encoded, frozen=True, kw_only=True):
    """Sparse vectors: float32[E, 2] of indices, ascending in an item, and values, item after item;
    `counts` is how many are each item's."""

    entries: FloatArray
    counts: list[int]


class EncodedScores(Encoded, frozen=True, kw_only=True):
    """float32[N, num_labels]: the logits of each item."""

    logits: FloatArray


PartT = TypeVar("PartT", bound=EncodedRows)
AnswerT = TypeVar("AnswerT", bound=Encoded)


class EncodeCall(PendingJob, ABC, Generic[PartT, AnswerT]):
    """The rows of one encode job, gathered in the order of its items."""

    token_states: ClassVar[bool] = False
    """`EncodeJob.token_states`"""

    def __init__(self, part: type[PartT], rows: int) -> None:
        super().__init__()
        self.done: Outcome[None] = Outcome()
        self._part = part
        self._missing = rows

    def push(self, part: EncodedRows) -> bool:
        """Take finished rows; True once none is missing."""
        if self.done.done():
            return False  # it has failed here, and the engine does not know yet
        if not isinstance(part, self._part):
            kind = type(part).__name__
            self.fail(RefusalError("invalid_request", f"this model returns {kind}"))
            return False
        rows = np.frombuffer(part.rows, np.int32)
        self._place(rows, part)
        self._missing -= len(rows)
        if self._missing == 0:
            self.done.set(None)
        return self._missing == 0

    def fail(self, error: RefusalError) -> None:
        super().fail(error)
        self.done.set(error)

    @abstractmethod
    def result(self, accepted: Accepted) -> AnswerT:
        """The answer, once no row is missing."""

    @abstractmethod
    def _place(self, rows: IntArray, part: PartT) -> None:
        """Put the results of `rows` where they belong."""


CallKind = Callable[[int, EngineInfo], EncodeCall[Any, AnswerT]]
"""Makes the call of a job, from its number of rows and what its engine says of its model."""


class VectorsCall(EncodeCall[DenseVectors, EncodedVectors]):
    """A dense vector an item."""

    def __init__(self, rows: int, info: EngineInfo) -> None:
        super().__init__(DenseVectors, rows)
        self._vectors: FloatArray = np.empty((rows, info.vector_size), np.float32)

    def result(self, accepted: Accepted) -> EncodedVectors:
        return EncodedVectors(
            prompt_tokens=accepted.prompt_tokens, dropped=accepted.dropped, vectors=self._vectors
        )

    def _place(self, rows: IntArray, part: DenseVectors) -> None:
        self._vectors[rows] = _floats(part.vectors, self._vectors.shape[1])


class ScoresCall(EncodeCall[Scores, EncodedScores]):
    """A classifier's logits for each item."""

    def __init__(self, rows: int, info: EngineInfo) -> None:
        super().__init__(Scores, rows)
        self._logits: FloatArray = np.empty((rows, info.vector_size), np.float32)

    def result(self, accepted: Accepted) -> EncodedScores:
        return EncodedScores(
            prompt_tokens=accepted.prompt_tokens, dropped=accepted.dropped, logits=self._logits
        )

    def _place(self, rows: IntArray, part: Scores) -> None:
        self._logits[rows] = _floats(part.logits, self._logits.shape[1])


class StatesCall(EncodeCall[TokenStates, EncodedStates]):
    """The states of all tokens. Fails with `too_large` where they are more than MAX_STATE_NUMBERS
    numbers."""

    token_states = True

    def __init__(self, rows: int, info: EngineInfo) -> None:
        super().__init__(TokenStates, rows)
        self._states: FloatArray = np.empty((0, info.hidden_size), np.float32)
        self._offsets: list[int] = [0]

    def accept(self, message: Accepted) -> None:
        super().accept(message)
        ends: list[int] = np.cumsum(message.prompt_tokens).tolist()
        self._offsets = [0, *ends]
        size = self._states.shape[1]
        if (numbers := ends[-1] * size) > MAX_STATE_NUMBERS:
            text = f"{numbers} numbers; an answer takes {MAX_STATE_NUMBERS}: ask for fewer at once"
            self.fail(RefusalError("too_large", text))
        else:
            self._states = np.empty((ends[-1], size), np.float32)

    def result(self, accepted: Accepted) -> EncodedStates:
        return EncodedStates(
            prompt_tokens=accepted.prompt_tokens, dropped=accepted.dropped, states=self._states
        )

    def _place(self, rows: IntArray, part: TokenStates) -> None:
        states = _floats(part.states, self._states.shape[1])
        read = 0
        row_numbers: list[int] = rows.tolist()
        for row in row_numbers:
            first, last = self._offsets[row], self._offsets[row + 1]
            self._states[first:last] = states[read : read + last - first]
            read += last - first


class SparseCall(EncodeCall[SparseVectors, EncodedSparse]):
    """A sparse vector an item. Fails with `too_large` where all have more than MAX_SPARSE_ENTRIES
    entries."""

    def __init__(self, rows: int, info: EngineInfo) -> None:
        del info  # its vector size is the vocabulary's, of which few entries are not zero
        super().__init__(SparseVectors, rows)
        self._entries: list[FloatArray] = [np.empty((0, 2), np.float32)] * rows
        self._room = MAX_SPARSE_ENTRIES

    def result(self, accepted: Accepted) -> EncodedSparse:
        return EncodedSparse(
            prompt_tokens=accepted.prompt_tokens,
            dropped=accepted.dropped,
            entries=np.concatenate(self._entries),
            counts=[len(entries) for entries in self._entries],
        )

    def _place(self, rows: IntArray, part: SparseVectors) -> None:
        entries = _floats(part.entries, 2)
        self._room -= len(entries)
        if self._room < 0:
            self._entries.clear()
            text = f"more than {MAX_SPARSE_ENTRIES} entries in all vectors: ask for fewer at once"
            self.fail(RefusalError("too_large", text))
            return
        counts = np.frombuffer(part.counts, np.int32)
        row_numbers: list[int] = rows.tolist()
        for row, own in zip(row_numbers, np.split(entries, np.cumsum(counts)[:-1]), strict=True):
            self._entries[row] = own


def _floats(data: bytes, width: int) -> FloatArray:
    """float32[N, width]"""
    return np.frombuffer(data, np.float32).reshape(-1, width)
