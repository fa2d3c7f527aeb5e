"""A decode step's results become known tokens, registered blocks, updates and ends."""

from array import array
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import repeat

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.messages import EncodedRows, EncodeJob, Finish, Output, RowOutput
from engine_core.refusal import RefusalError
from engine_core.schedulers.batches import DecodeBatch, EncodeBatch
from engine_core.schedulers.encoder_rows import EncoderRows
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.prefixes import share_computed
from engine_core.schedulers.request import Request, Status
from workers.contract.messages import (
    ClassifyOutput,
    EmbedOutput,
    EmbedSparseOutput,
    GenerateOutput,
    Logprobs,
)

_ITEM = 4  # bytes of an int32 or float32


def confirm_rows(
    batch: DecodeBatch, output: GenerateOutput, kv: KVCacheManager, outbox: Outbox
) -> Iterator[Request]:
    """Advance every request of `batch` by its result. Yields the requests that are over, or
    rewound: their tokens are to be sampled again.

    Results of requests that ended meanwhile are ignored. One without finite logits fails its job.
    """
    tokens = iter(np.frombuffer(output.tokens, np.int32).tolist())
    read = _read_values(batch, output.read) if output.read else []
    sampled = _slices(output.sampled, repeat(1))
    if read:
        sampled = map(_with_read, sampled, read)
    slices = _slices(output.scored, map(len, batch.scored.values()))
    by_row = dict(zip(batch.scored, slices, strict=False))
    scored_rows = map(by_row.get, range(len(batch.samples))) if by_row else repeat(None)
    ended = Status.ENDED
    rows = zip(batch.requests, batch.samples, scored_rows, strict=False)
    for request, samples, own_scored in rows:
        scored = own_scored
        request.in_flight -= 1
        if not samples:
            if scored is not None and request.status is not ended:
                _announce(request, -1, None, None, scored, outbox)
            continue
        token, logprobs = next(tokens), next(sampled)
        request.unresolved -= 1
        if request.status is ended or request.read or request.rewound:
            continue
        matcher = request.matcher
        if (token < 0 or matcher is not None) and _refuses(request, token, outbox):
            yield request
            continue
        finish = _advance(request, token, kv)
        if matcher is not None and matcher.complete and finish != "stop":
            # No end token was sampled, so the last token is text: it is sent before the end.
            _announce(request, token, None, logprobs, scored, outbox)
            token, finish, logprobs, scored = -1, "stop", None, None
        _announce(request, token, finish, logprobs, scored, outbox)
        if finish is not None:
            yield request
    if read:
        yield from _confirm_read_rows(read, outbox)


def _refuses(request: Request, token: int, outbox: Outbox) -> bool:
    """Whether a sampled token is none, or is not allowed: it is sampled again, or the job fails."""
    matcher = request.matcher
    if token < 0:
        outbox.fail_not_finite(request.job)
    elif matcher is None or matcher.accept(token):
        return False
    elif matcher.may_retry:
        request.rewound = True
    else:
        fail_off_grammar(request, outbox)
    return True


def num_sampled(batch: DecodeBatch) -> int:
    """Count the tokens that a step has sampled for requests that go on."""
    ended = Status.ENDED
    rows = zip(batch.requests, batch.samples, strict=True)
    return sum(
        [samples and request.status is not ended and not request.read for request, samples in rows]
    )


def fail_off_grammar(request: Request, outbox: Outbox) -> None:
    """Fail the job of a request that cannot go on."""
    if request.limits is not None:
        message = "`allowed_token_ids` and `bad_words` leave no token that may come next"
        error = RefusalError("invalid_request", message)
    else:
        message = (
            "the text cannot be continued within its grammar, which may have grown too complex"
        )
        error = RefusalError("row_failed", message)
    outbox.fail(request.job, error)


def _advance(request: Request, token: int, kv: KVCacheManager) -> Finish | None:
    """Append a confirmed token. Returns why the request ends, or None."""
    tokens = request.tokens
    known = len(tokens)
    if known >= request.max_len:
        return "length"  # max_tokens is 0: only the prompt was requested
    tokens.append(token)
    # The new token's own position is not computed yet, so a block is complete one token later.
    if known // kv.block_size > request.registered and request.status is Status.RUNNING:
        request.hashes = kv.hash_blocks(tokens, request.hashes, request.salt)
        request.register_blocks(kv, known)
        share_computed(kv, request, known)
    if token in request.stops:
        return "stop"
    return "length" if known + 1 >= request.max_len else None


def _announce(
    request: Request,
    token: int,
    finish: Finish | None,
    sampled: Logprobs | None,
    scored: Logprobs | None,
    outbox: Outbox,
) -> None:
    job = request.job
    if request.params.logprobs is None:
        sampled = None
    if len(request.tokens) == request.prompt_len:
        token, sampled = -1, None
    cached = 0 if request.announced else request.cached
    output = RowOutput(job.message.id, request.row, token, finish, sampled, scored, cached)
    outbox.row(job, output, first=not request.announced)
    request.announced = True
    if scored is not None:
        request.scored += len(scored.chosen) // _ITEM


def _slices(logprobs: Logprobs | None, counts: Iterable[int]) -> Iterator[Logprobs | None]:
    """Cut log-probabilities into slices of `counts` positions. None each where there are none."""
    if logprobs is None:
        yield from repeat(None)
        return
    start, wide = 0, logprobs.width * _ITEM
    for count in counts:
        stop = start + count
        yield Logprobs(
            width=logprobs.width,
            chosen=logprobs.chosen[start * _ITEM : stop * _ITEM],
            top_ids=logprobs.top_ids[start * wide : stop * wide],
            top=logprobs.top[start * wide : stop * wide],
            ranks=logprobs.ranks[start * _ITEM : stop * _ITEM],
        )
        start = stop


_ReadValues = tuple[Request, bytes]
"""A request that a step samples, and what it reports of the tokens that are read, float32."""


def _read_values(batch: DecodeBatch, values: bytes) -> list[_ReadValues]:
    """Cut `values` into those of each row that the step samples, empty where none are read."""
    rows, left = zip(batch.requests, batch.samples, strict=True), BytesIO(values)
    sampled = [request for request, samples in rows if samples]
    # A value is as large as an id.
    return [(request, left.read(len(request.params.logprob_token_ids))) for request in sampled]


def _with_read(sampled: Logprobs | None, read: _ReadValues) -> Logprobs | None:
    """The log-probabilities of a sampled token, with the alternatives that its request names."""
    request, values = read
    ids = request.params.logprob_token_ids
    if sampled is None or not ids:
        return sampled
    return replace(sampled, width=len(ids) // _ITEM, top_ids=ids, top=values)


EncodeOutput = EmbedOutput | EmbedSparseOutput | ClassifyOutput

_IntArray = npt.NDArray[np.int32]


def answer_jobs(batch: EncodeBatch, output: EncodeOutput, outbox: Outbox) -> Iterator[Job]:
    """Send each job its results. Yields the jobs that fail, as theirs are not all finite."""
    by_output: dict[Output, _Vectors] = {"vector": _vectors_by_row(output, len(batch.lens))}
    if isinstance(output, EmbedOutput):
        for name, requested in batch.requested.items():
            counts = batch.lens * requested
            by_output[name] = _Vectors(output.tokens[name], len(batch.lens), counts)
    first = 0
    for (job, rows), source in zip(batch.parts, batch.sources, strict=True):
        last = first + len(rows)
        if not job.ended:
            own = [by_output[name] for name in outputs_of(job)]
            vectors = own[0] if len(own) == 1 else _side_by_side(own, range(first, last))
            places = (first, last) if len(own) == 1 else (0, len(rows))
            if (numbers := vectors.of_rows(*places)) is not None:
                outbox.encoded(job, _encoded(job, source, rows, *numbers), len(rows))
            else:
                outbox.fail_not_finite(job)
                yield job
        first = last


def _encoded(
    job: Job, source: EncoderRows, rows: range, values: bytes, counts: bytes
) -> EncodedRows:
    """The results of a job's `rows`."""
    told = source.answered(rows, with_ids=not _WITH_IDS.isdisjoint(outputs_of(job)))
    return EncodedRows(job.message.id, _int32(rows), values, counts, *told)


_WITH_IDS = frozenset({"token_vectors", "token_weights"})
"""Outputs that are read with the ids of their tokens."""


class _Vectors:
    """A step's vectors float32[V, D]: one for each of R rows, or `counts` int32[R] of each."""

    def __init__(self, data: bytes, num_rows: int, counts: _IntArray | None = None) -> None:
        self._counts = counts
        self._ends = range(num_rows + 1) if counts is None else [0, *np.cumsum(counts).tolist()]
        numbers = np.frombuffer(data, np.float32)
        # Sparse vectors may all be empty.
        width = len(numbers) // max(self._ends[-1], 1)
        self.all = numbers.reshape(self._ends[-1], width)
        self._finite = bool(np.isfinite(numbers).all())

    def of_rows(self, first: int, last: int) -> tuple[bytes, bytes] | None:
        """The values and the counts of rows [first, last). None if they are not all finite."""
        own = self.all[self._ends[first] : self._ends[last]]
        if not self._finite and not np.isfinite(own).all():
            return None
        counts = b"" if self._counts is None else self._counts[first:last].tobytes()
        return own.tobytes(), counts

    def of_row(self, row: int) -> npt.NDArray[np.float32]:
        return self.all[self._ends[row] : self._ends[row + 1]]


def _side_by_side(outputs: list[_Vectors], rows: range) -> _Vectors:
    """All numbers of each row, one output after another."""
    numbers = [b"".join(each.of_row(row).tobytes() for each in outputs) for row in rows]
    counts = np.array([len(own) // _ITEM for own in numbers], np.int32)
    return _Vectors(b"".join(numbers), len(rows), counts)


def outputs_of(job: Job) -> tuple[Output, ...]:
    """The outputs of each row of a job, in order."""
    return job.message.outputs if isinstance(job.message, EncodeJob) else ("vector",)


def _vectors_by_row(output: EncodeOutput, num_rows: int) -> _Vectors:
    """The step's vectors, logits or sparse entries."""
    if isinstance(output, EmbedSparseOutput):
        counts = np.frombuffer(output.counts, np.int32)
        return _Vectors(output.entries, len(counts), counts)
    data = output.vectors if isinstance(output, EmbedOutput) else output.logits
    return _Vectors(data, num_rows)


def confirm_encoded_rows(
    batch: DecodeBatch, output: EmbedOutput | ClassifyOutput, outbox: Outbox
) -> Iterator[Request]:
    """Answer the rows of a decode step that embeds or scores. Yields the requests that are over."""
    sampled: list[Request] = []
    for request, samples in zip(batch.requests, batch.samples, strict=True):
        request.in_flight -= 1
        if samples:
            request.unresolved -= 1
            sampled.append(request)
    yield from _answer_rows(sampled, _vectors_by_row(output, len(sampled)), outbox)


def _confirm_read_rows(read: list[_ReadValues], outbox: Outbox) -> Iterator[Request]:
    """Answer the rows of a step that end with tokens that are read. Yields their requests."""
    own = [(request, values) for request, values in read if request.read]
    counts = np.array([len(values) // _ITEM for _, values in own], np.int32)
    vectors = _Vectors(b"".join(values for _, values in own), len(own), counts)
    yield from _answer_rows([request for request, _ in own], vectors, outbox, counts)


def _answer_rows(
    requests: list[Request], vectors: _Vectors, outbox: Outbox, counts: _IntArray | None = None
) -> Iterator[Request]:
    """Send each job its rows' `vectors`, in the order of `requests`, with `counts` if rows have any
    number. Yields the requests that are over. A job whose vectors are not finite fails."""
    over: dict[Job, list[int]] = {}
    for place, request in enumerate(requests):
        if request.status is not Status.ENDED:
            over.setdefault(request.job, []).append(place)
    for job, places in over.items():
        values = np.concatenate([vectors.of_row(place) for place in places])
        if not np.isfinite(values).all():
            outbox.fail_not_finite(job)
        else:
            rows = [requests[place] for place in places]
            part = EncodedRows(
                job.message.id,
                _int32(request.row for request in rows),
                values.tobytes(),
                b"" if counts is None else counts[places].tobytes(),
                _int32(request.prompt_len for request in rows),
                _int32(request.dropped for request in rows),
            )
            outbox.encoded(job, part, len(places))
        for place in places:
            yield requests[place]


def _int32(numbers: Iterable[int]) -> bytes:
    return array("i", numbers).tobytes()
