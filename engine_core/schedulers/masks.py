"""A step's masks of allowed tokens: which rows need one, and when it can be computed."""

from __future__ import annotations

import numpy as np

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.request import Request, Status
from engine_core.structured.matcher import MaskFiller
from workers.contract.messages import StepMask


class StepMasks:
    """Follows the newest step with constrained rows from its submission until its mask is known.

    A row's mask depends on all its tokens, so that of a row submitted ahead waits for the result of
    the step before. No step is submitted while a mask is owed: a worker's next message is then the
    mask that it waits for.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_words = -(-vocab_size // 32)
        self._filler = MaskFiller()
        self._step = -1
        self._rows: list[Request] = []

    @property
    def owed(self) -> bool:
        """The newest step still waits for its mask."""
        return bool(self._rows)

    @property
    def ready(self) -> bool:
        """The mask that is owed can be computed: no token of a row but this step's is unknown."""
        return self.owed and all(
            row.unresolved == 1 or row.status is Status.ENDED for row in self._rows
        )

    def owe(self, batch: DecodeBatch) -> bytes:
        """`batch` is submitted. Returns `DecodeStep.masked`."""
        sampled = [r for r, s in zip(batch.requests, batch.samples, strict=True) if s]
        self._rows = [request for request in sampled if request.matcher is not None]
        self._step = batch.step
        return bytes([request.matcher is not None for request in sampled]) if self._rows else b""

    def take(self) -> tuple[StepMask, list[Request]]:
        """The mask that is owed, once it is `ready`, and the rows that cannot go on.

        Rows that have ended may sample anything: nobody looks at it.
        """
        rows, self._rows = self._rows, []
        matchers = [
            (index, row.matcher)
            for index, row in enumerate(rows)
            if row.status is not Status.ENDED and row.matcher is not None
        ]
        words = max([matcher.words for _, matcher in matchers], default=self._vocab_words)
        bits = np.full((len(rows), words), 0xFFFFFFFF, np.uint32)
        failed = [rows[index] for index in self._filler.fill(bits, matchers)]
        return StepMask(self._step, bits[:, : self._vocab_words].tobytes()), failed
