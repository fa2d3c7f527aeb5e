"""Whether clients wait for answers: then steps are short, so that the next request waits little."""

import math
from collections.abc import Callable

STEP_SECONDS = 20e-3
"""What a step with work of lower classes is filled to beside online traffic. A request that
arrives waits for one, and each token of those that run takes one. Batches lose little: of an 8B
model an H100 computes 512 tokens in 12 ms, and 1,024 in 24."""

REMEMBERED = 5.0
"""Seconds. Who has just been answered may well ask again, and would find a long step running."""


class OnlineTraffic:
    """Requests that others give way to: present, or until a moment ago."""

    def __init__(self, present: Callable[[], bool], clock: Callable[[], float]) -> None:
        """`present` tells whether there is one; `clock` is in seconds."""
        self._present, self._clock = present, clock
        self._last = -math.inf

    def seen(self) -> None:
        """One has been there until now."""
        self._last = self._clock()

    def is_recent(self) -> bool:
        """One is there, or was in the last five seconds."""
        if self._present():
            self.seen()
            return True
        return self._clock() - self._last < REMEMBERED
