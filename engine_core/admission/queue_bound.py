"""How long a job that comes now would wait for its first row to begin, and where that is too long.

Nothing is known of the device. What is measured is how fast prompts begin while others wait: that
rate holds whatever limits it, be it the model's speed, the slots or the KV blocks.
"""

import math
from collections import deque
from typing import NamedTuple

from engine_core.job import RefusalError

_MEMORY_WITHOUT_BOUND, _LEAST_MEMORY = 30.0, 1.0
_TRUSTED = 0.1
"""Of the memory: what must have been measured before a rate is believed. The first steps of a burst
may be short, or wait for a kernel to be compiled."""


class _Step(NamedTuple):
    submitted: float
    begun: int
    measures: bool


class QueueBound:
    """Measures how many prompt tokens begin in a second of steps during which others waited, and
    refuses jobs by it.

    The past fades as the bound goes by: a measurement weighs 1/e after so many seconds of such
    steps. So the rate is that of about the time which the last of the queue has waited. Times are
    in seconds, of any one clock.
    """

    def __init__(self, model: str, max_seconds: float) -> None:
        """`max_seconds` 0: nothing is refused."""
        self._model, self._max_seconds = model, max_seconds
        self._memory = max(max_seconds or _MEMORY_WITHOUT_BOUND, _LEAST_MEMORY)
        self._tokens = self._seconds = 0.0
        self._steps: deque[_Step] = deque()
        self._left = 0
        self._finished = -math.inf

    def submitted(self, now: float, waited: int, left: int) -> None:
        """A step was submitted; before it so many prompt tokens waited, behind it `left` do."""
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
        """Seconds until so many prompt tokens have begun; 0 where no rate is known."""
        if self._seconds < _TRUSTED * self._memory or self._tokens <= 0:
            return 0.0
        return tokens * self._seconds / self._tokens

    def check(self, tokens: int) -> None:
        """Raises RefusalError `overloaded` for a job that so many prompt tokens go before, where
        that takes too long. One that nothing goes before is never refused."""
        wait = self.expected_wait(tokens)
        if 0 < self._max_seconds < wait:
            raise RefusalError(
                "overloaded",
                f"model {self._model} is overloaded: a request that comes now would wait about "
                f"{wait:.3g} s, more than the {self._max_seconds:g} s that this server allows; "
                "try again later",
                retry_after=wait,
            )
