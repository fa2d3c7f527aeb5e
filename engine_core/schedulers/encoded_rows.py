"""An encode step's results, cut into what each of its jobs gets."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine_core.job import Job
from engine_core.messages import (
    DenseVectors,
    EncodedRows,
    EncodeJob,
    Scores,
    SparseVectors,
    TokenStates,
)
from engine_core.schedulers.batches import EncodeBatch
from workers.contract.messages import ClassifyOutput, EmbedOutput, EmbedSparseOutput

EncodeOutput = EmbedOutput | EmbedSparseOutput | ClassifyOutput

_IntArray = npt.NDArray[np.int32]


def job_results(
    batch: EncodeBatch, output: EncodeOutput
) -> Iterator[tuple[Job, int, EncodedRows | None]]:
    """For each job of the batch how many of its rows have finished, and their results; None in
    place of results that are not all finite."""
    vectors = _Ragged(*_vectors_by_row(batch, output))
    states = None
    if isinstance(output, EmbedOutput) and len(batch.token_states):
        states = _Ragged(output.states, batch.num_states)
    # Chosen once a step: where many jobs share it, each may have a single row.
    plain = Scores if isinstance(output, ClassifyOutput) else DenseVectors
    sparse = isinstance(output, EmbedSparseOutput)
    first = 0
    for job, rows in batch.parts:
        num_rows = len(rows)
        last = first + num_rows
        own_states = states if states is not None and requests_token_states(job) else None
        own = (own_states or vectors).of_rows(first, last)
        if own is None:
            part = None
        elif sparse:
            counts = vectors.counts[first:last].tobytes()
            part = SparseVectors(job.message.id, rows.tobytes(), own, counts)
        elif own_states is not None:
            part = TokenStates(job.message.id, rows.tobytes(), own)
        else:
            part = plain(job.message.id, rows.tobytes(), own)
        yield job, num_rows, part
        first = last


class _Ragged:
    """A step's vectors float32[V, D], `counts` int32[R] of which are each row's."""

    def __init__(self, data: bytes, counts: _IntArray) -> None:
        self.counts = counts
        self._ends: list[int] = [0, *np.cumsum(counts).tolist()]
        numbers = np.frombuffer(data, np.float32)
        # Sparse vectors may all be empty.
        width = len(numbers) // max(self._ends[-1], 1)
        self._vectors = numbers.reshape(self._ends[-1], width)
        self._finite = bool(np.isfinite(numbers).all())

    def of_rows(self, first: int, last: int) -> bytes | None:
        """The vectors of rows `first` to `last` - 1; None if they are not all finite."""
        own = self._vectors[self._ends[first] : self._ends[last]]
        return own.tobytes() if self._finite or np.isfinite(own).all() else None


def requests_token_states(job: Job) -> bool:
    """The job's rows end with the states of their tokens, not with pooled vectors."""
    return isinstance(job.message, EncodeJob) and job.message.token_states


def _vectors_by_row(batch: EncodeBatch, output: EncodeOutput) -> tuple[bytes, _IntArray]:
    """The step's vectors, float32[V, D], and how many are each row's, int32[R]."""
    match output:
        case EmbedOutput():
            return output.vectors, np.ones_like(batch.lens)
        case EmbedSparseOutput():
            return output.entries, np.frombuffer(output.counts, np.int32)
        case ClassifyOutput():
            return output.logits, np.ones_like(batch.lens)
