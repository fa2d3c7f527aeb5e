"""Refuses jobs in the client for a moment after the engine refused one because of its queue.

Such a refusal costs the engine nothing: an overloaded engine has the least time to refuse jobs.
"""

import time
from collections.abc import Callable

from engine_core.refusal import RefusalError

_SHARE_OF_WAIT, _MOST_SECONDS = 0.05, 0.25
"""How long a refusal holds: this share of the expected wait, and at most this many seconds. A queue
of that length does not run empty meanwhile."""


class CircuitBreaker:
    """Refuses jobs of an API key that the engine would refuse, for a while after it has refused one
    like them.

    Then one job probes the engine, and the others are refused for as long again, or until the probe
    is accepted. If no job comes to probe for that long, the refusal is forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusal: RefusalError | None = None
        self._priority = 0
        self._until = self._seconds = 0.0

    def check(self, priority: int) -> None:
        """Raises RefusalError `overloaded` for a job that would begin no earlier than the one that
        the engine has refused."""
        refusal = self._refusal
        if refusal is None or priority < self._priority:
            return
        if self._clock() < self._until:
            raise refusal.copy()

    def probe(self, priority: int) -> bool:
        """A job of this priority is about to be sent. Raises RefusalError as `check` does; True if
        the job is the probe: others are refused until it is answered."""
        self.check(priority)
        if self._refusal is None or priority < self._priority:
            return False
        now = self._clock()
        if now > self._until + self._seconds:
            self._refusal = None
            return False
        self._until = now + self._seconds
        return True

    def accepted(self) -> None:
        """The engine has accepted the probe."""
        self._refusal = None

    def refused(self, priority: int, refusal: RefusalError) -> None:
        """The engine has refused a job because of its queue."""
        self._refusal, self._priority = refusal.copy(), priority
        self._seconds = min(_SHARE_OF_WAIT * (refusal.retry_after or 0.0), _MOST_SECONDS)
        self._until = self._clock() + self._seconds
