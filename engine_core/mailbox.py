"""A queue from threads to the loop, with a descriptor that the loop can poll."""

import os
from collections import deque
from typing import Generic, TypeVar

MailT = TypeVar("MailT")


class Mailbox(Generic[MailT]):
    """Any thread puts items; one thread takes them, once the descriptor is readable."""

    def __init__(self) -> None:
        self._items: deque[MailT] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._event)

    def fileno(self) -> int:
        """Readable while there are items to take."""
        return self._event

    def put(self, *items: MailT) -> None:
        """Add items in one go."""
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
