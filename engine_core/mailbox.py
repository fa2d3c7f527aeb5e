"""How threads hand what they have finished to the loop."""

import os
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Any thread puts; one takes, which learns of items by a descriptor that it polls."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._event)

    def fileno(self) -> int:
        """Readable while there is something to take."""
        return self._event

    def put(self, *items: Item) -> None:
        """Add them together."""
        self._items.extend(items)
        os.eventfd_write(self._event, len(items))

    def take(self) -> list[Item]:
        """All that has been put since the last call, in that order."""
        try:
            count = os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        # Not what is there: an item that is not told of yet would leave the descriptor readable
        # with nothing to take.
        return [self._items.popleft() for _ in range(count)]
