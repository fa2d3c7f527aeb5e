"""One step's masks: whose they are, when they can be computed, and computing them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine_core.schedulers.batches import DecoderBatch
from engine_core.schedulers.request import Request, Status
from workers.contract.messages import StepMask

_PARALLEL_ROWS = 16
"""From so many rows on threads share the work: waking them takes longer than some 10 µs a row."""


class StepMasks:
    """Follows the newest step with constrained rows from its submission until its mask is known.

    A row's mask depends on all its tokens, so that of a row submitted ahead waits for the result of
    the step before. No step is submitted while a mask is owed: a worker's next message is then the
    mask that it waits for.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_words = -(-vocab_size // 32)
        self._executor: LLExecutor | None = None
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

    def owe(self, batch: DecoderBatch) -> bytes:
        """`batch` is submitted. Returns `StepInput.masked`."""
        sampled = [r for r, s in zip(batch.requests, batch.samples, strict=True) if s]
        self._rows = [request for request in sampled if request.matcher is not None]
        self._step = batch.step
        return bytes([request.matcher is not None for request in sampled]) if self._rows else b""

    def take(self) -> tuple[StepMask, list[Request]]:
        """The mask that is owed, once it is `ready`, and the rows that have none any more.

        Rows that have ended may sample anything: nobody looks at it.
        """
        rows, self._rows = self._rows, []
        open_rows = [
            (index, row.matcher)
            for index, row in enumerate(rows)
            if row.status is not Status.ENDED and row.matcher is not None
        ]
        words = max([matcher.words for _, matcher in open_rows], default=self._vocab_words)
        bits = np.full((len(rows), words), 0xFFFFFFFF, np.uint32)
        self._fill(bits, [(matcher.state, index) for index, matcher in open_rows])
        failed = [rows[index] for index, matcher in open_rows if not matcher.settle(bits[index])]
        return StepMask(self._step, bits[:, : self._vocab_words].tobytes()), failed

    def _fill(self, bits: npt.NDArray[np.uint32], matchers: list[tuple[LLMatcher, int]]) -> None:
        """Compute the masks of some rows into uint32[rows, words]."""
        address, size = bits.ctypes.data, bits.strides[0]
        if len(matchers) < _PARALLEL_ROWS:
            for matcher, index in matchers:
                matcher.unsafe_compute_mask_ptr(address + index * size, size)
            return
        if self._executor is None:
            self._executor = LLExecutor()
        self._executor.unsafe_compute_mask_ptr(matchers, address, size, len(bits))
