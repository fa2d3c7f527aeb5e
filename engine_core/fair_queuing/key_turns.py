"""Whose turn it is, among the API keys that wait for one thing.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a key's virtual time is what it has been
given, by its weight; who has been given least goes first. A key that comes back begins where those
that wait are: it is owed nothing for the time when it asked for nothing. Once none waits, all begin
anew.
"""

from collections.abc import Collection

from engine_core.fair_queuing.key_share import KeyShare


class KeyTurns:
    """The virtual times of the keys that wait, and of those that have waited beside them."""

    def __init__(self) -> None:
        self._waiting: dict[int, KeyShare] = {}
        self._times: dict[int, float] = {}

    def begin(self, key: KeyShare) -> None:
        """It waits from now on."""
        least = min((self._times[other] for other in self._waiting), default=0.0)
        self._times[key.number] = max(self._times.get(key.number, 0.0), least)
        self._waiting[key.number] = key

    def end(self, key: KeyShare) -> None:
        """It waits for nothing more."""
        del self._waiting[key.number]
        if not self._waiting:
            self._times.clear()

    def count(self, key: KeyShare, amount: float) -> None:
        """It is given so much, while it waits."""
        self._times[key.number] += amount / key.weight

    def time_of(self, key: KeyShare) -> float:
        """The virtual time of a key that waits."""
        return self._times[key.number]

    def waiting(self) -> Collection[KeyShare]:
        """The keys that wait, the one that has waited longest first."""
        return self._waiting.values()

    def first(self) -> KeyShare:
        """The key whose turn it is; of two whose times are the same, the one that has waited
        longer. Raises ValueError if none waits."""
        if len(self._waiting) == 1:
            return next(iter(self.waiting()))
        return min(self.waiting(), key=self.time_of)

    def in_order(self) -> list[KeyShare]:
        """The keys that wait, the one whose turn it is first."""
        return sorted(self.waiting(), key=self.time_of)
