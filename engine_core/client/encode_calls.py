"""A client's encode jobs while they run."""

import msgspec
import numpy as np

from engine_core.client.pending_jobs import FloatArray, Outcome, PendingJob
from engine_core.job_timing import JobTiming
from engine_core.messages import Accepted, EncodedRows, EngineInfo
from engine_core.refusal import RefusalError

MAX_STATE_NUMBERS = 1 << 22
"""Numbers in the answer to a job that requests token states: as text, some 80 MB."""

MAX_SPARSE_ENTRIES = 1 << 21
"""Numbers that are not zero in all vectors of a job. Only a model that is not sparse comes near: a
row of a few tokens may then have as many as its vocabulary."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an encode job of N items.

    values         float32[V, D], item after item: the vector of each, a classifier's logits, the
                   states of its tokens, or the entries of its sparse vector (index, value)
    counts         how many of `values` are each item's, if they are states or entries
    prompt_tokens  the token count of each item
    dropped        how many tokens were cut off each item; empty where nothing was
    timing         that of the whole job
    """

    values: FloatArray
    counts: list[int] = []
    prompt_tokens: list[int]
    dropped: list[int] = []
    timing: JobTiming | None = None


class EncodeCall(PendingJob):
    """The rows of one encode job, gathered in the order of its items."""

    def __init__(self, rows: int, info: EngineInfo, *, token_states: bool) -> None:
        """`info` is what the engine says of its model."""
        super().__init__()
        self.done: Outcome[Encoded] = Outcome()
        self._missing = rows
        self._message = Accepted(0, [])
        self._token_states = token_states
        width = info.hidden_size if token_states else info.vector_size
        if info.task == "embed_sparse":
            width = 2  # of an entry, not of the vector, which has as many as the vocabulary
        self._vectors: FloatArray = np.empty((rows, width), np.float32)
        self._counted: dict[int, FloatArray] = {}  # of rows with more or fewer than one vector
        self._entries = 0

    def accept(self, message: Accepted) -> None:
        super().accept(message)
        self._message = message
        if not self._token_states:
            return
        numbers = sum(message.prompt_tokens) * self._vectors.shape[1]
        if numbers > MAX_STATE_NUMBERS:
            text = f"{numbers} numbers; an answer takes {MAX_STATE_NUMBERS}: ask for fewer at once"
            self.fail(RefusalError("too_large", text))

    def push(self, part: EncodedRows) -> bool:
        """Take finished rows; True once none is missing."""
        if self.done.done():
            return False  # it has failed here, and the engine does not know yet
        rows = np.frombuffer(part.rows, np.int32)
        values = np.frombuffer(part.values, np.float32).reshape(-1, self._vectors.shape[1])
        if part.counts:
            ends = np.cumsum(np.frombuffer(part.counts, np.int32))
            self._counted.update(zip(rows.tolist(), np.split(values, ends[:-1]), strict=True))
            self._check_entries(len(values))
        else:
            self._vectors[rows] = values
        self._missing -= len(rows)
        if self._missing == 0:
            self.done.set(self._result())
        return self._missing == 0

    def fail(self, error: RefusalError) -> None:
        super().fail(error)
        self.done.set(error)

    def _result(self) -> Encoded:
        counted = [self._counted[row] for row in sorted(self._counted)]
        return Encoded(
            values=np.concatenate(counted) if counted else self._vectors,
            counts=list(map(len, counted)),
            prompt_tokens=self._message.prompt_tokens,
            dropped=self._message.dropped,
            timing=self.timing,
        )

    def _check_entries(self, more: int) -> None:
        """Fail the job if its sparse vectors have too many."""
        self._entries += more
        if not self._token_states and self._entries > MAX_SPARSE_ENTRIES:
            self._counted.clear()
            text = f"more than {MAX_SPARSE_ENTRIES} entries in all vectors: ask for fewer at once"
            self.fail(RefusalError("too_large", text))
