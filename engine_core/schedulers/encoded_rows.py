"""The results of rows that are encoded: cut into what each of their jobs gets."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine_core.job import Job
from engine_core.messages import EncodedRows, EncodeJob
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import DecodeBatch, EncodeBatch
from engine_core.schedulers.requests.request import Request, Status
from workers.contract.messages import ClassifyOutput, EmbedOutput, EmbedSparseOutput

EncodeOutput = EmbedOutput | EmbedSparseOutput | ClassifyOutput

_IntArray = npt.NDArray[np.int32]


def job_results(
    batch: EncodeBatch, output: EncodeOutput
) -> Iterator[tuple[Job, int, EncodedRows | None]]:
    """For each job of the batch how many of its rows have finished, and their results; None in
    place of results that are not all finite."""
    vectors = _vectors_by_row(batch, output)
    states = None
    if isinstance(output, EmbedOutput) and len(batch.token_states):
        states = _Vectors(output.states, len(batch.lens), batch.num_states)
    first = 0
    for job, rows in batch.parts:
        last = first + len(rows)
        own = states if states is not None and requests_token_states(job) else vectors
        yield job, len(rows), own.of_rows(job, rows, first, last)
        first = last


class _Vectors:
    """A step's vectors float32[V, D]: one for each of R rows, or `counts` int32[R] of each."""

    def __init__(self, data: bytes, num_rows: int, counts: _IntArray | None = None) -> None:
        self._counts = counts
        self._ends = range(num_rows + 1) if counts is None else [0, *np.cumsum(counts).tolist()]
        numbers = np.frombuffer(data, np.float32)
        # Sparse vectors may all be empty.
        width = len(numbers) // max(self._ends[-1], 1)
        self._vectors = numbers.reshape(self._ends[-1], width)
        self._finite = bool(np.isfinite(numbers).all())

    def of_rows(self, job: Job, rows: _IntArray, first: int, last: int) -> EncodedRows | None:
        """What the job gets for its `rows`, which are `first` to `last` - 1 of the step; None if
        they are not all finite."""
        own = self._vectors[self._ends[first] : self._ends[last]]
        if not self._finite and not np.isfinite(own).all():
            return None
        counts = b"" if self._counts is None else self._counts[first:last].tobytes()
        return EncodedRows(job.message.id, rows.tobytes(), own.tobytes(), counts)


def requests_token_states(job: Job) -> bool:
    """The job's rows end with the states of their tokens, not with pooled vectors."""
    return isinstance(job.message, EncodeJob) and job.message.token_states


def _vectors_by_row(batch: EncodeBatch, output: EncodeOutput) -> _Vectors:
    """The step's vectors, logits or sparse entries."""
    if isinstance(output, EmbedSparseOutput):
        counts = np.frombuffer(output.counts, np.int32)
        return _Vectors(output.entries, len(counts), counts)
    data = output.vectors if isinstance(output, EmbedOutput) else output.logits
    return _Vectors(data, len(batch.lens))


def confirm_encoded_rows(
    batch: DecodeBatch, output: EmbedOutput | ClassifyOutput, outbox: Outbox
) -> Iterator[Request]:
    """Answer the rows of a decode step that embeds or scores, each by its last token; yields the
    requests that are over.

    As `confirm_rows`: results of requests that have ended are ignored, and one that is not finite
    fails its whole job.
    """
    vectors = _last_vectors(output, sum(batch.samples))
    finite: list[bool] = np.atleast_1d(np.isfinite(vectors).all(axis=1)).tolist()
    indices = iter(range(len(vectors)))
    over: dict[Job, list[tuple[Request, int]]] = {}
    for request, samples in zip(batch.requests, batch.samples, strict=True):
        request.in_flight -= 1
        if not samples:
            continue
        index = next(indices)
        request.unresolved -= 1
        if request.status is Status.ENDED:
            continue
        over.setdefault(request.job, []).append((request, index))
        if not finite[index]:
            outbox.fail_not_finite(request.job)
    for job, rows in over.items():
        if not job.ended:
            numbers = np.array([request.row for request, _ in rows], np.int32)
            own = vectors[[index for _, index in rows]]
            part = EncodedRows(job.message.id, numbers.tobytes(), own.tobytes())
            outbox.encoded(job, part, len(rows))
        for request, _ in rows:
            yield request


def _last_vectors(output: EmbedOutput | ClassifyOutput, rows: int) -> npt.NDArray[np.float32]:
    """[rows, D]"""
    data = output.vectors if isinstance(output, EmbedOutput) else output.logits
    numbers = np.frombuffer(data, np.float32)
    return numbers.reshape(rows, len(numbers) // max(rows, 1))
