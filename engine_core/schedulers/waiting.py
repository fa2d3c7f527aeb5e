"""The requests that wait for a slot, in the order in which they get one; how much waits."""

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator

from engine_core.schedulers.request import Request


class WaitingTokens:
    """How many prompt tokens wait, by priority."""

    def __init__(self) -> None:
        self._tokens: Counter[int] = Counter()

    def change(self, priority: int, tokens: int) -> None:
        """So many more, or less."""
        self._tokens[priority] += tokens
        if not self._tokens[priority]:
            del self._tokens[priority]

    def up_to(self, priority: int | None) -> int:
        """Of this priority and of those that go before it, or (None) of all."""
        if priority is None:
            return self._tokens.total()
        return sum(tokens for at, tokens in self._tokens.items() if at <= priority)


class WaitingQueue:
    """An ordered set: those that had begun come first, the others by (priority, arrival).

    What had begun and was preempted keeps its place, so no priority makes it start over for ever. A
    request leaves from anywhere at the cost of a look-up.
    """

    def __init__(self) -> None:
        # Each with the tokens that it came with: of what was preempted some may yet be confirmed.
        self._begun: OrderedDict[Request, int] = OrderedDict()
        self._new: dict[int, dict[Request, int]] = {}
        self._priorities: list[int] = []  # the keys of `_new`, ascending
        self._size = 0
        self._begun_tokens, self._new_tokens = 0, WaitingTokens()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        yield from self._begun
        for priority in self._priorities:
            yield from self._new[priority]

    def tokens_ahead(self, priority: int | None) -> int:
        """How many wait that begin before a new request of `priority`, or (None) of the last."""
        return self._begun_tokens + self._new_tokens.up_to(priority)

    def add(self, request: Request) -> None:
        """A new request: behind all of its priority."""
        if request.priority not in self._new:
            self._new[request.priority] = {}
            insort(self._priorities, request.priority)
        self._new[request.priority][request] = tokens = len(request.tokens)
        self._new_tokens.change(request.priority, tokens)
        self._size += 1

    def put_back(self, request: Request) -> None:
        """A request that was preempted: before all others, which began later or not at all."""
        self._begun[request] = tokens = len(request.tokens)
        self._begun.move_to_end(request, last=False)
        self._begun_tokens += tokens
        self._size += 1

    def remove(self, request: Request) -> None:
        """`request` waits no longer; it did."""
        self._size -= 1
        if request in self._begun:
            self._begun_tokens -= self._begun.pop(request)
            return
        alike = self._new[request.priority]
        self._new_tokens.change(request.priority, -alike.pop(request))
        if not alike:
            del self._new[request.priority]
            del self._priorities[bisect_left(self._priorities, request.priority)]
