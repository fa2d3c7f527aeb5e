"""Whose rows a step takes first, among the API keys that wait.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a key's virtual time is what it has been
given, by its weight; who has been given least goes first. A key that comes back begins where those
that waited are: it is owed nothing for the time when it asked for nothing.
"""

from collections import Counter
from collections.abc import Iterable

from engine_core.job import Job


class KeyTurns:
    """The virtual times of all keys with jobs."""

    def __init__(self) -> None:
        self._jobs: Counter[int] = Counter()
        self._times: dict[int, float] = {}

    @property
    def are_taken(self) -> bool:
        """Whether several keys wait."""
        return len(self._jobs) > 1

    def add(self, job: Job) -> None:
        """A job waits."""
        key = job.message.key.number
        if key not in self._jobs:
            least = min((self._times[other] for other in self._jobs), default=0.0)
            self._times[key] = max(self._times.get(key, 0.0), least)
        self._jobs[key] += 1

    def remove(self, job: Job) -> None:
        """It waits no longer."""
        key = job.message.key.number
        self._jobs[key] -= 1
        if not self._jobs[key]:
            del self._jobs[key]

    def count(self, job: Job, tokens: int) -> None:
        """A step takes so many tokens of a job."""
        share = job.message.key
        self._times[share.number] += tokens / share.weight

    def in_order(self, jobs: Iterable[Job]) -> list[list[Job]]:
        """The jobs of each key in their order, first those of the key that has been given least."""
        of_key: dict[int, list[Job]] = {}
        for job in jobs:
            of_key.setdefault(job.message.key.number, []).append(job)
        return [of_key[key] for key in sorted(of_key, key=self._times.__getitem__)]
