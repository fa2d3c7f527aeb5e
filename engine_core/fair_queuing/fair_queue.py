"""A queue in which API keys take turns, however much each of them asks for."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from engine_core.fair_queuing.key_share import KeyShare
from engine_core.fair_queuing.key_turns import KeyTurns

ItemT = TypeVar("ItemT", bound=Hashable)


class FairQueue(Generic[ItemT]):
    """First come, first served for each key; keys take turns by their weights, an item a turn."""

    def __init__(self) -> None:
        self._turns = KeyTurns()
        self._of_key: dict[int, dict[ItemT, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def put(self, item: ItemT, key: KeyShare) -> None:
        """Behind all others of its key."""
        if key.number not in self._of_key:
            self._of_key[key.number] = {}
            self._turns.begin(key)
        self._of_key[key.number][item] = None

    def take(self) -> ItemT:
        """The next one. Raises ValueError if there is none."""
        key = self._turns.first()
        item = next(iter(self._of_key[key.number]))
        self._turns.count(key, 1)
        self.discard(item, key)
        return item

    def discard(self, item: ItemT, key: KeyShare) -> bool:
        """It waits no more. Returns whether it did."""
        items = self._of_key.get(key.number, {})
        if item not in items:
            return False
        del items[item]
        if not items:
            del self._of_key[key.number]
            self._turns.end(key)
        return True
