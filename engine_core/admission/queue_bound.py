"""The bound on the expected wait: how long a new job's first row would wait to begin.

Nothing is assumed about the device. Measured is the rate at which prompt tokens begin while others
wait: it holds whatever limits it, the model's speed, the slots or the KV blocks.
"""

import math
from collections import deque
from typing import NamedTuple

from engine_core.job import RefusalError

_MEMORY_WITHOUT_BOUND, _LEAST_MEMORY = 30.0, 1.0
_TRUSTED = 0.1
"""The share of `_memory` that must have been measured before the rate is used: the first steps of a
burst may be short, or wait for a kernel to be compiled."""


class _Step(NamedTuple):
    """`begun` prompt tokens began with it; it `measures` the rate if others were left waiting."""

    submitted: float
    begun: int
    measures: bool


class QueueBound:
    """Measures how many prompt tokens begin a second, over steps during which others waited, and
    refuses jobs whose expected wait is too long.

    A measurement fades to 1/e over `max_seconds` of such steps. So the rate is that of about the
    time for which the last item of a full queue has waited. Times are in seconds, of any one clock.
    """

    def __init__(self, model: str, max_seconds: float) -> None:
        """`max_seconds` bounds the expected wait; 0 refuses nothing."""
        self._model, self._max_seconds = model, max_seconds
        self._memory = max(max_seconds or _MEMORY_WITHOUT_BOUND, _LEAST_MEMORY)
        self._tokens = self._seconds = 0.0
        self._steps: deque[_Step] = deque()
        self._left = 0
        self._finished = -math.inf

    def submitted(self, now: float, waited: int, left: int) -> None:
        """A step was submitted: `waited` prompt tokens waited before it, `left` wait after it."""
        self._steps.append(_Step(now, waited - left, left > 0 or self._left > 0))
        self._left = left

    def finished(self, now: float) -> None:
        """The oldest step in flight has finished."""
        step = self._steps.popleft()
        seconds = now - max(step.submitted, self._finished)
        self._finished = now
        if step.measures:
            kept = math.exp(-seconds / self._memory)
            self._tokens = self._tokens * kept + step.begun
            self._seconds = self._seconds * kept + seconds

    def expected_wait(self, tokens: int) -> float:
        """Seconds until `tokens` prompt tokens have begun; 0 while no rate is known."""
        if self._seconds < _TRUSTED * self._memory or self._tokens <= 0:
            return 0.0
        return tokens * self._seconds / self._tokens

    def check(self, tokens: int) -> None:
        """Raises RefusalError `overloaded` for a job behind `tokens` prompt tokens if these take
        too long to begin. A job with nothing ahead of it is never refused."""
        wait = self.expected_wait(tokens)
        if 0 < self._max_seconds < wait:
            raise RefusalError(
                "overloaded",
                f"model {self._model} is overloaded: a request that comes now would wait about "
                f"{wait:.3g} s, more than the {self._max_seconds:g} s that this server allows; "
                "try again later",
                retry_after=wait,
            )
