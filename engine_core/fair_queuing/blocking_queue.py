"""A fair queue between threads."""

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from engine_core.fair_queuing.fair_queue import FairQueue
from engine_core.fair_queuing.key_share import KeyShare

PutT = TypeVar("PutT", bound=Hashable)


class BlockingQueue(Generic[PutT]):
    """API keys take turns. Any thread may put and get."""

    def __init__(self) -> None:
        self._items: FairQueue[PutT] = FairQueue()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: PutT, key: KeyShare) -> None:
        """Behind all others of its key."""
        with self._changed:
            self._items.put(item, key)
            self._changed.notify()

    def close(self) -> None:
        """Nothing is put from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def get(self) -> PutT | None:
        """The next one, as soon as there is one; None once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            return self._items.take() if self._items else None
