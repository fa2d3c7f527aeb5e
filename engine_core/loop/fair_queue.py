"""A queue in which API keys take turns, however much each of them asks for."""

import os
import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from engine_core.messages import KeyShare


class KeyTurns:
    """The keys that are `waiting`, and the virtual `times` of these and of those that have waited
    beside them."""

    def __init__(self) -> None:
        self.waiting: dict[int, KeyShare] = {}
        self.times: dict[int, float] = {}

    def begin(self, key: KeyShare) -> None:
        least = min((self.times[other] for other in self.waiting), default=0.0)
        self.times[key.number] = max(self.times.get(key.number, 0.0), least)
        self.waiting[key.number] = key

    def end(self, key: KeyShare) -> None:
        del self.waiting[key.number]
        if not self.waiting:
            self.times.clear()

    def count(self, key: KeyShare, amount: float) -> None:
        """Charge a key that waits."""
        self.times[key.number] += amount / key.weight

    def first(self) -> KeyShare:
        """The key of the least time, of equals the one that has waited longer. Raises ValueError if
        none waits."""
        if len(self.waiting) == 1:
            return next(iter(self.waiting.values()))
        return self.waiting[min(self.waiting, key=self.times.__getitem__)]


ItemT = TypeVar("ItemT", bound=Hashable)


class FairQueue(Generic[ItemT]):
    """Keys take turns by their weights, an item a turn. Each is served first come, first served."""

    def __init__(self) -> None:
        self._turns = KeyTurns()
        self._of_key: dict[int, dict[ItemT, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def put(self, item: ItemT, key: KeyShare) -> None:
        if key.number not in self._of_key:
            self._of_key[key.number] = {}
            self._turns.begin(key)
        self._of_key[key.number][item] = None

    def take(self) -> ItemT:
        """The next item. Raises ValueError if there is none."""
        key = self._turns.first()
        item = next(iter(self._of_key[key.number]))
        self._turns.count(key, 1)
        self.discard(item, key)
        return item

    def discard(self, item: ItemT, key: KeyShare) -> bool:
        """Remove an item. Returns False if it did not wait."""
        items = self._of_key.get(key.number, {})
        if item not in items:
            return False
        del items[item]
        if not items:
            del self._of_key[key.number]
            self._turns.end(key)
        return True


PutT = TypeVar("PutT", bound=Hashable)


class BlockingQueue(Generic[PutT]):
    """API keys take turns. Any thread may put and get."""

    def __init__(self) -> None:
        self._items: FairQueue[PutT] = FairQueue()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: PutT, key: KeyShare) -> None:
        with self._changed:
            self._items.put(item, key)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get(self) -> PutT | None:
        """The next item, as soon as there is one. None once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            return self._items.take() if self._items else None


MailT = TypeVar("MailT")


class Mailbox(Generic[MailT]):
    """Items that any thread puts, and one thread takes once the descriptor is readable."""

    def __init__(self) -> None:
        self._items: deque[MailT] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._event)

    def fileno(self) -> int:
        """Readable while there are items to take."""
        return self._event

    def put(self, *items: MailT) -> None:
        self._items.extend(items)
        os.eventfd_write(self._event, len(items))

    def take(self) -> list[MailT]:
        """All items put since the last call, in that order."""
        try:
            count = os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        # Only as many as the descriptor counts: taking an item before its count is written would
        # leave the descriptor readable with nothing to take.
        return [self._items.popleft() for _ in range(count)]
