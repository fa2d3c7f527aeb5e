"""Which kinds of jobs are limited to short steps, so that a request of a client waits little."""

import math
from collections.abc import Callable
from typing import Final

from engine_core.loop.jobs import JobKind

STEP_SECONDS = 20e-3
"""What a step with work of lower kinds is filled to beside online traffic. A request that arrives
waits for one, and each token of those that run takes one. Batches lose little: of an 8B model an
H100 computes 512 tokens in 12 ms, and 1,024 in 24."""

REMEMBERED = 5.0
"""Seconds. Who has just been answered may well ask again, and would find a long step running."""

UNLIMITED: Final = len(JobKind)
"""In place of the first kind that is limited."""


class OnlineTraffic:
    """Jobs that others give way to: present, or until a moment ago."""

    def __init__(self, present: Callable[[JobKind], bool], clock: Callable[[], float]) -> None:
        """`present` tells whether there is a job of a kind; `clock` is in seconds."""
        self._present, self._clock = present, clock
        self._last = [-math.inf] * len(JobKind)

    def seen(self, kind: JobKind) -> None:
        """Note that a job of this kind has been there until now."""
        self._last[kind] = self._clock()

    def first_limited(self) -> int:
        """The first kind that is there and gives way to one before it; `UNLIMITED` if none does."""
        since = self._clock() - REMEMBERED
        online = False
        for kind in JobKind:
            present = self._present(kind)
            if present and online:
                return kind
            online = online or present or self._last[kind] > since
        return UNLIMITED
