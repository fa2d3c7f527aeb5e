"""A step's mask of allowed tokens: which requests need one, and when it can be computed."""

from __future__ import annotations

import numpy as np

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.request import Request, Status
from engine_core.structured.matcher import MaskFiller
from workers.contract.messages import StepMask


class StepMasks:
    """Follows the newest step with constrained requests until its mask is computed.

    A mask depends on all tokens of its request. So the mask of an ahead step can be computed only
    after the result of the step before. No step is submitted while a mask is owed: a worker's next
    message is then the mask that it waits for.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_words = -(-vocab_size // 32)
        self._filler = MaskFiller()
        self._step = -1
        self._requests: list[Request] = []

    @property
    def owed(self) -> bool:
        """The newest step still waits for its mask."""
        return bool(self._requests)

    @property
    def ready(self) -> bool:
        """The mask that is owed can be computed: every constrained request has all its tokens,
        except the one that this step samples."""
        return self.owed and all(
            request.unresolved == 1 or request.status is Status.ENDED for request in self._requests
        )

    def owe(self, batch: DecodeBatch) -> bytes:
        """`batch` is submitted. Returns `DecodeStep.masked`."""
        sampled = [r for r, s in zip(batch.requests, batch.samples, strict=True) if s]
        self._requests = [request for request in sampled if request.matcher is not None]
        self._step = batch.step
        if not self._requests:
            return b""
        return bytes([request.matcher is not None for request in sampled])

    def compute(self) -> tuple[StepMask, list[Request]]:
        """The mask that is owed, once it is `ready`, and the requests that cannot go on.

        Requests that have ended may sample any token: nobody reads it.
        """
        requests, self._requests = self._requests, []
        matchers = [
            (index, request.matcher)
            for index, request in enumerate(requests)
            if request.status is not Status.ENDED and request.matcher is not None
        ]
        words = max([matcher.words for _, matcher in matchers], default=self._vocab_words)
        bits = np.full((len(requests), words), 0xFFFFFFFF, np.uint32)
        failed = [requests[index] for index in self._filler.fill(bits, matchers)]
        return StepMask(self._step, bits[:, : self._vocab_words].tobytes()), failed
