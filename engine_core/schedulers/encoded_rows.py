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
    data, sizes = _vectors_by_row(batch, output)
    ends = [0, *np.cumsum(sizes).tolist()]
    numbers = np.frombuffer(data, np.float32)
    # Sparse vectors may all be empty.
    vectors = numbers.reshape(ends[-1], len(numbers) // max(ends[-1], 1))
    finite = bool(np.isfinite(vectors).all())
    # Chosen once a step: where many jobs share it, each may have a single row.
    plain = Scores if isinstance(output, ClassifyOutput) else DenseVectors
    sparse, any_states = isinstance(output, EmbedSparseOutput), len(batch.token_states) > 0
    first = 0
    for job, rows in batch.parts:
        num_rows = len(rows)
        last = first + num_rows
        own = vectors[ends[first] : ends[last]]
        if not (finite or np.isfinite(own).all()):
            part = None
        elif sparse:
            counts = sizes[first:last].tobytes()
            part = SparseVectors(job.message.id, rows.tobytes(), own.tobytes(), counts)
        elif any_states and requests_token_states(job):
            part = TokenStates(job.message.id, rows.tobytes(), own.tobytes())
        else:
            part = plain(job.message.id, rows.tobytes(), own.tobytes())
        yield job, num_rows, part
        first = last


def requests_token_states(job: Job) -> bool:
    """The job's rows end with the states of their tokens, not with pooled vectors."""
    return isinstance(job.message, EncodeJob) and job.message.token_states


def _vectors_by_row(batch: EncodeBatch, output: EncodeOutput) -> tuple[bytes, _IntArray]:
    """The step's vectors, float32[V, D], and how many are each row's, int32[R]."""
    match output:
        case EmbedOutput():
            return output.vectors, batch.num_vectors
        case EmbedSparseOutput():
            return output.entries, np.frombuffer(output.counts, np.int32)
        case ClassifyOutput():
            return output.logits, np.ones_like(batch.lens)
