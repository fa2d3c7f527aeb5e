"""The requests that wait for a slot, in the order in which they get one."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator

from engine_core.request import Request


class WaitingQueue:
    """An ordered set: those that had begun come first, the others by (priority, arrival).

    What had begun and was preempted keeps its place, so no priority makes it start over for ever. A
    request leaves from anywhere at the cost of a look-up.
    """

    def __init__(self) -> None:
        self._begun: OrderedDict[Request, None] = OrderedDict()
        self._new: dict[int, dict[Request, None]] = {}
        self._priorities: list[int] = []  # the keys of `_new`, ascending
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        yield from self._begun
        for priority in self._priorities:
            yield from self._new[priority]

    def add(self, request: Request) -> None:
        """A new request: behind all of its priority."""
        if request.priority not in self._new:
            self._new[request.priority] = {}
            insort(self._priorities, request.priority)
        self._new[request.priority][request] = None
        self._size += 1

    def put_back(self, request: Request) -> None:
        """A request that was preempted: before all others, which began later or not at all."""
        self._begun[request] = None
        self._begun.move_to_end(request, last=False)
        self._size += 1

    def remove(self, request: Request) -> None:
        """`request` waits no longer; it did."""
        self._size -= 1
        if request in self._begun:
            del self._begun[request]
            return
        alike = self._new[request.priority]
        del alike[request]
        if not alike:
            del self._new[request.priority]
            del self._priorities[bisect_left(self._priorities, request.priority)]
