"""A scheduler's batch → the one flat message that every stage gets.

Built once a step, on the CPU (vLLM PR 6164's idea).
"""

from array import array
from collections.abc import Sequence

import numpy as np

from engine_core.schedulers.batches import DecodeBatch, EncodeBatch
from workers.contract.messages import DecodeStep, EncodeStep

_FROM_SLOT = array("i", [-1])
_NO_TARGET = -1


def build_decode_step(
    batch: DecodeBatch, masked: bytes = b"", groups: Sequence[int] = ()
) -> DecodeStep:
    """Rows in batch order; positions whose token was sampled in this slot are sent as -1.

    `masked` and `groups`, which are flat, are those of `DecodeStep`.
    """
    return DecodeStep(
        step=batch.step,
        tokens=_tokens(batch),
        query_lens=_int32(batch.lens),
        slots=_int32([request.slot for request in batch.requests]),
        starts=_int32(batch.starts),
        sample=bytes(batch.samples),
        block_updates=_int32(batch.updates),
        block_copies=_int32(batch.copies),
        groups=_int32(groups),
        inits=batch.inits,
        after=batch.after,
        targets=_targets(batch),
        masked=masked,
    )


def build_encode_step(batch: EncodeBatch) -> EncodeStep:
    """The batch's arrays as they are."""
    return EncodeStep(
        step=batch.step,
        tokens=batch.tokens.tobytes(),
        query_lens=batch.lens.tobytes(),
        token_types=batch.token_types.tobytes(),
        token_states=batch.token_states.tobytes(),
        unpooled_lens=batch.unpooled_lens.tobytes(),
    )


def _int32(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()


def _tokens(batch: DecodeBatch) -> bytes:
    decodes = batch.num_decodes
    chunks = [
        _FROM_SLOT if start >= request.resident_from else request.tokens[start : start + length]
        for request, start, length in zip(
            batch.requests[decodes:], batch.starts[decodes:], batch.lens[decodes:], strict=True
        )
    ]
    return b"".join([_FROM_SLOT.tobytes() * decodes, *chunks])


def _targets(batch: DecodeBatch) -> bytes:
    """For each scored position the prompt token after it; empty if the step scores nothing."""
    if not batch.num_scored:
        return b""
    targets = np.full(batch.num_tokens, _NO_TARGET, np.int32)
    offset = 0
    for request, start, length, scored in zip(
        batch.requests, batch.starts, batch.lens, batch.scored, strict=True
    ):
        if scored:
            first = offset + scored.start - start
            following = request.tokens[scored.start + 1 : scored.stop + 1]
            targets[first : first + len(scored)] = following
        offset += length
    return targets.tobytes()
