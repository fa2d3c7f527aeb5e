"""The bound on the expected wait: how long a new job's first row would wait to begin.

Nothing is assumed about the device: the measured rate is how many prompt tokens steps start to
compute in a second while others wait. So it includes whatever limits the engine: the model's speed,
the slots or the KV blocks.
"""

import math
from collections import deque
from typing import NamedTuple

from engine_core.refusal import RefusalError

_WINDOW_WITHOUT_BOUND, _LEAST_WINDOW = 30.0, 1.0  # seconds
_TRUSTED = 0.1
"""The share of the window that must have been measured before the rate is used: the first steps of
a burst may be short, or wait for a kernel to be compiled."""


class _Step(NamedTuple):
    """A step in flight: when it was submitted, how many prompt tokens left the queue with it, and
    whether the rate includes it, because other tokens kept waiting."""

    submitted: float
    tokens: int
    measured: bool


class QueueBound:
    """Measures how many prompt tokens leave the queue in a second, over steps during which others
    waited, and refuses jobs whose expected wait is too long.

    The weight of a step falls to 1/e within a window of `max_seconds` of such steps. A row at the
    end of a full queue waits about that long, so the rate is the one that it has seen itself. Times
    are in seconds, of any one clock.
    """

    def __init__(self, model: str, max_seconds: float) -> None:
        """`max_seconds` bounds the expected wait; 0 refuses nothing."""
        self._model, self._max_seconds = model, max_seconds
        self._window = max(max_seconds or _WINDOW_WITHOUT_BOUND, _LEAST_WINDOW)
        self._tokens = self._seconds = 0.0
        self._steps: deque[_Step] = deque()
        self._queued = 0  # prompt tokens, after the newest step
        self._last_finish = -math.inf

    def step_submitted(self, now: float, before: int, after: int) -> None:
        """A step was submitted. `before` and `after` are the prompt tokens queued before and after
        it was scheduled."""
        self._steps.append(_Step(now, before - after, after > 0 or self._queued > 0))
        self._queued = after

    def step_finished(self, now: float) -> None:
        """The oldest step in flight has finished."""
        step = self._steps.popleft()
        seconds = now - max(step.submitted, self._last_finish)
        self._last_finish = now
        if step.measured:
            kept = math.exp(-seconds / self._window)
            self._tokens = self._tokens * kept + step.tokens
            self._seconds = self._seconds * kept + seconds

    def expected_wait(self, tokens: int) -> float:
        """Seconds until `tokens` prompt tokens have left the queue; 0 while no rate is known."""
        if self._seconds < _TRUSTED * self._window or self._tokens <= 0:
            return 0.0
        return tokens * self._seconds / self._tokens

    def admit(self, tokens: int) -> None:
        """Raises RefusalError `overloaded` for a job behind `tokens` queued prompt tokens if its
        expected wait is too long. A job that need not queue is never refused."""
        wait = self.expected_wait(tokens)
        if 0 < self._max_seconds < wait:
            raise RefusalError(
                "overloaded",
                f"model {self._model} is overloaded: a request that comes now would wait about "
                f"{wait:.3g} s, more than the {self._max_seconds:g} s that this server allows; "
                "try again later",
                retry_after=wait,
            )
