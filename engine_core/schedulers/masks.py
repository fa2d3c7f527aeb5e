"""The masks of allowed tokens: which steps need one, and when it can be computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.request import Request, Status
from engine_core.structured.matcher import clear, fill_masks
from workers.contract.messages import StepMask


class StepMasks:
    """Follows the steps with constrained requests until their masks are computed.

    Only sampling needs a mask, so a constrained request is submitted ahead like any other, and its
    mask follows once the step before is confirmed. An ahead row's token comes from the oldest step
    in flight. So all masks owed wait for that step, and the oldest step's own is never owed.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_words = -(-vocab_size // 32)
        # Steps that wait for their masks, and their constrained requests that sample.
        self._owed: deque[tuple[int, list[Request]]] = deque()

    def forget(self) -> None:
        """Owe no mask: the steps are lost."""
        self._owed.clear()

    def owe(self, batch: DecodeBatch) -> bytes:
        """`batch` is submitted. Returns `DecodeStep.masked`."""
        sampled = [r for r, s in zip(batch.requests, batch.samples, strict=True) if s]
        requests = [request for request in sampled if request.masked]
        if not requests:
            return b""
        self._owed.append((batch.step, requests))
        return bytes([request.masked for request in sampled])

    def compute(self) -> Iterator[tuple[StepMask, list[Request]]]:
        """The masks that can be computed now, by step, each with the requests that cannot go on."""
        # Ready: every request has all its tokens, except the one that this step samples.
        while self._owed and all(request.unresolved == 1 for request in self._owed[0][1]):
            yield self._fill(*self._owed.popleft())

    def _fill(self, step: int, requests: list[Request]) -> tuple[StepMask, list[Request]]:
        """Requests that have ended, or fail now, may sample any token: nobody reads it."""
        open_ones = [(i, r) for i, r in enumerate(requests) if r.status is not Status.ENDED]
        matchers = [
            (i, r.matcher.grammar)
            for i, r in open_ones
            if r.matcher is not None and r.matcher.grammar is not None
        ]
        words = max([matcher.words for _, matcher in matchers], default=self._vocab_words)
        bits = np.full((len(requests), words), 0xFFFFFFFF, np.uint32)
        failed = set(fill_masks(bits, matchers))
        bits = bits[:, : self._vocab_words]
        for i, r in open_ones:
            if r.matcher is not None:
                clear(bits[i], r.matcher.excluded)
            if r.limits is not None and not r.limits.restrict(bits[i], r.tokens, r.prompt_len):
                failed.add(i)
        bits[list(failed)] = 0xFFFFFFFF
        return StepMask(step, bits.tobytes()), [requests[i] for i in sorted(failed)]
