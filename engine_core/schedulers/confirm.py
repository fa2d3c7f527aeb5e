"""A decoder step's results become known tokens, block names, news and ends."""

from collections.abc import Iterator

import numpy as np

from engine_core.batches import DecoderBatch
from engine_core.kv_cache import KVCacheManager
from engine_core.messages import Finish, RowOutput
from engine_core.outbox import Outbox
from engine_core.request import Request, Status
from workers.messages import Logprobs, StepOutput

_ITEM = 4  # bytes of an int32 or float32


def confirm_rows(
    batch: DecoderBatch, output: StepOutput, kv: KVCacheManager, outbox: Outbox
) -> Iterator[Request]:
    """Advance every row of `batch` by its result; yields the requests that are over.

    Rows that ended while the step was in flight are wasted: nothing of them is kept. A row without
    finite logits fails its whole job.
    """
    tokens = iter(np.frombuffer(output.tokens, np.int32).tolist())
    sampled = _rows_of(output.sampled)
    scored = _ScoredPieces(output.scored)
    for request, samples, targets in zip(batch.requests, batch.samples, batch.scored, strict=True):
        piece = scored.take(len(targets))
        token = next(tokens) if samples else -1
        logprobs = next(sampled) if samples else None
        request.in_flight -= 1
        request.unresolved -= samples
        if request.status is Status.ENDED:
            continue
        if samples and token < 0:
            outbox.fail_not_finite(request.job)
            yield request
            continue
        finish = _advance(request, token, kv) if samples else None
        if samples or piece is not None:
            _announce(request, token, finish, logprobs, piece, outbox)
        if finish is not None:
            yield request


def _advance(request: Request, token: int, kv: KVCacheManager) -> Finish | None:
    """Append a confirmed token and name the block that it completes; says whether it ends."""
    if len(request.tokens) >= request.max_len:
        return "length"  # max_tokens is 0: the prompt alone was wanted
    request.tokens.append(token)
    # The new token's own position is not computed yet, so a block is complete one token later.
    full = (len(request.tokens) - 1) // kv.block_size
    if request.status is Status.RUNNING and full > request.registered:
        request.hashes = kv.hash_blocks(request.tokens, request.hashes)
        kv.register(request.blocks[request.registered], request.hashes[request.registered])
        request.registered += 1
    if request.is_stop(token):
        return "stop"
    return "length" if len(request.tokens) >= request.max_len else None


def _announce(
    request: Request,
    token: int,
    finish: Finish | None,
    sampled: Logprobs | None,
    scored: Logprobs | None,
    outbox: Outbox,
) -> None:
    params = request.params
    told = len(request.tokens) > request.prompt_len
    outbox.row(
        request.job,
        RowOutput(
            job=request.job.message.id,
            row=request.row,
            token=token if told else -1,
            finish=finish,
            sampled=sampled if told and params.logprobs is not None else None,
            scored=scored,
            cached=0 if request.announced else request.cached,
        ),
    )
    request.announced = True
    if scored is not None:
        request.scored += len(scored.chosen) // _ITEM


def _rows_of(logprobs: Logprobs | None) -> Iterator[Logprobs | None]:
    """One entry a sampled row, without end where none was asked for."""
    if logprobs is None:
        while True:
            yield None
    for row in range(len(logprobs.chosen) // _ITEM):
        yield _slice(logprobs, row, row + 1)


class _ScoredPieces:
    """Hands out a step's scored positions row by row."""

    def __init__(self, scored: Logprobs | None) -> None:
        self._scored = scored
        self._next = 0

    def take(self, count: int) -> Logprobs | None:
        """The next `count` positions; None where there are none."""
        if self._scored is None or count == 0:
            return None
        start, self._next = self._next, self._next + count
        return _slice(self._scored, start, self._next)


def _slice(logprobs: Logprobs, start: int, stop: int) -> Logprobs:
    wide = logprobs.width * _ITEM
    return Logprobs(
        width=logprobs.width,
        chosen=logprobs.chosen[start * _ITEM : stop * _ITEM],
        top_ids=logprobs.top_ids[start * wide : stop * wide],
        top=logprobs.top[start * wide : stop * wide],
    )
