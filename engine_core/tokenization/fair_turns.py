"""A queue in which API keys take turns, however much each of them asks for."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FairTurns(Generic[ItemT]):
    """First come, first served for each key; keys take turns, one item each."""

    def __init__(self) -> None:
        self._of_key: OrderedDict[int, deque[ItemT]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def put(self, item: ItemT, key: int) -> None:
        """Behind all others of its key."""
        self._of_key.setdefault(key, deque()).append(item)

    def take(self) -> ItemT:
        """The next one. Raises StopIteration if there is none."""
        key = next(iter(self._of_key))
        items = self._of_key[key]
        item = items.popleft()
        if items:
            self._of_key.move_to_end(key)
        else:
            del self._of_key[key]
        return item
