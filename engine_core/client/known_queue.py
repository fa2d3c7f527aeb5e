"""What a client knows of its engine's queue: whether it was full a moment ago.

What is refused here costs the engine nothing, and it has the least time to spare when it is asked
the most.
"""

import time
from collections.abc import Callable

from engine_core.client.pending_jobs import EngineError

_SHARE_OF_WAIT, _MOST_SECONDS = 0.05, 0.25
"""For how long a refusal holds: this share of the expected wait, at most so many seconds. A queue
so long loses nothing by it."""


class KnownQueue:
    """Jobs that the engine would refuse are refused here, after it has refused one like them.

    A while later one job asks again, and the others are refused for as long once more, or until it
    is taken. Where none comes to ask for so long, the refusal is forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusal: EngineError | None = None
        self._priority = 0
        self._until = self._seconds = 0.0

    def check(self, priority: int) -> None:
        """Raises EngineError `overloaded` for a job of this priority that would begin no earlier
        than the one that the engine refused."""
        refusal = self._refusal
        if refusal is None or priority < self._priority:
            return
        if self._clock() < self._until:
            # A fresh one: an error that is raised again keeps what it passed through before.
            raise EngineError(refusal.code, refusal.message, retry_after=refusal.retry_after)

    def ask(self, priority: int) -> bool:
        """A job of this priority goes to the engine, unless this raises as `check` does. True if
        others are refused until that is answered."""
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
        """The engine has taken the job that asked."""
        self._refusal = None

    def refused(self, priority: int, refusal: EngineError) -> None:
        """The engine has not, for its queue."""
        self._refusal, self._priority = refusal, priority
        self._seconds = min(_SHARE_OF_WAIT * (refusal.retry_after or 0.0), _MOST_SECONDS)
        self._until = self._clock() + self._seconds
