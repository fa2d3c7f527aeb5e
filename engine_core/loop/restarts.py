"""Losses of stages: how often others are started, how long that takes, and whose fault they are."""

from collections.abc import Iterable

from engine_core.config import EngineConfig
from engine_core.loop.jobs import Job
from engine_core.messages import Loss

RESTART_WINDOW = 600.0
"""Seconds in which restarts are counted, beside those that they may take themselves."""


class RestartLimit:
    """Allows so many restarts in any `RESTART_WINDOW` seconds, and as long as they may take.

    Those that never end would be forgotten else, one after another.
    """

    def __init__(self, most: int, start_timeout: float = 0.0) -> None:
        """A start is a loss itself if it takes longer than `start_timeout` seconds (0: never)."""
        self._most, self._window = most, RESTART_WINDOW + most * start_timeout
        self._times: list[float] = []

    def allow(self, now: float) -> bool:
        """Count a restart at the time `now`, unless there were too many."""
        self._times = [each for each in self._times if each > now - self._window]
        allowed = len(self._times) < self._most
        if allowed:
            self._times.append(now)
        return allowed


class Outage:
    """The time from a loss of stages until others are ready, the last one if there were several."""

    def __init__(self, expected: float) -> None:
        """A start is `expected` to take so many seconds, then as many as the last one took."""
        self._expected = expected
        self._began, self._why = 0.0, ""
        self._seconds: float | None = 0.0

    @property
    def is_on(self) -> bool:
        return self._seconds is None

    def begin(self, now: float, why: str) -> None:
        """Note a loss: another one during an outage goes on with it."""
        if not self.is_on:
            self._began, self._seconds = now, None
        self._why = why

    def end(self, now: float) -> float:
        """Note that all stages are ready. Returns how long that took."""
        self._seconds = self._expected = now - self._began
        return self._seconds

    def left(self, now: float) -> float:
        """Seconds until the stages are expected, 0 if they are there or late."""
        return max(0.0, self._began + self._expected - now) if self.is_on else 0.0

    def report(self, now: float) -> Loss | None:
        return Loss(self._why, now - self._began, self._seconds) if self._why else None


_SUSPICIOUS = 2


class Suspects:
    """Jobs in whose steps stages were lost twice, without an update for the client between.

    They are computed one by one, alone, until each has an update: the one with which the stages are
    lost once more is the cause. Halves would find it too, by a loss for each halving: but a step
    costs milliseconds, and a loss a whole start.
    """

    def __init__(self) -> None:
        self.isolated: Job | None = None
        """The job that is computed alone."""
        self._left: list[Job] = []

    def lost(self, jobs: Iterable[Job]) -> Job | None:
        """Note a loss with these jobs in flight. Returns the one that is its cause, if that is
        known."""
        alone, lost = self.alone, list(dict.fromkeys(job for job in jobs if not job.ended))
        for job in lost:
            job.losses += 1
        if alone is not None and lost == [alone]:
            self._left.clear()
            return alone
        self._left.extend(job for job in lost if job.losses >= _SUSPICIOUS)
        return None

    @property
    def alone(self) -> Job | None:
        """The job that is to be computed alone now."""
        # The last one first: each goes back before all that wait, so their order stays.
        while self._left and (self._left[-1].ended or not self._left[-1].losses):
            self._left.pop()
        return self._left[-1] if self._left else None


class StageLosses:
    """All that a core keeps of losses of its stages."""

    def __init__(self, config: EngineConfig, start_seconds: float) -> None:
        self.limit = RestartLimit(config.max_restarts, config.startup_timeout)
        self.outage = Outage(start_seconds)
        self.suspects = Suspects()
