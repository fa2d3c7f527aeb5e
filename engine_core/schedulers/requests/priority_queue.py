"""What waits of one API key, in the order in which it begins; the sums of its tokens."""

import sys
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, Generic, TypeVar

QueuedT = TypeVar("QueuedT", bound=Hashable)

_OVERDUE: Final = -sys.float_info.max
"""Before every priority."""


class PriorityQueue(Generic[QueuedT]):
    """An ordered set by (priority, arrival), lower priorities first.

    What has waited longer than `max_wait` seconds goes before them all: so no priority makes it
    wait for ever. Each item counts some prompt tokens, those that it held when it was added. Adding
    and removing cost a look-up wherever an item stands; sums are kept.
    """

    def __init__(self, max_wait: float, clock: Callable[[], float]) -> None:
        self.num_tokens = 0
        self._max_wait, self._clock = max_wait, clock
        self._since: OrderedDict[QueuedT, float] = OrderedDict()  # of those not overdue, ascending
        self._groups: dict[float, OrderedDict[QueuedT, int]] = {}
        self._priorities: list[float] = []  # the keys of `_groups`, ascending
        self._priority_of: dict[QueuedT, float] = {}
        self._own_priorities: dict[QueuedT, float] = {}  # of those that are overdue
        self._group_tokens: Counter[float] = Counter()

    def __len__(self) -> int:
        return len(self._priority_of)

    def __iter__(self) -> Iterator[QueuedT]:
        for priority in self._priorities:
            yield from self._groups[priority]

    def groups(self) -> list[Collection[QueuedT]]:
        """The items of each priority, the lowest first."""
        return [self._groups[priority].keys() for priority in self._priorities]

    def tokens_of(self, item: QueuedT) -> int:
        """The tokens that it counts."""
        return self._groups[self._priority_of[item]][item]

    def tokens_before(self, priority: int) -> int:
        """The tokens of the items that begin before a new one of `priority`."""
        return sum([tokens for other, tokens in self._group_tokens.items() if other <= priority])

    def add(self, item: QueuedT, priority: float, tokens: int) -> None:
        """A new item: behind all others of its priority."""
        self._insert(item, priority, tokens)
        self._since[item] = self._clock()

    def promote_overdue(self) -> None:
        """What has waited too long goes before every priority from now on."""
        limit = self._clock() - self._max_wait
        while self._since:
            item, since = next(iter(self._since.items()))
            if since > limit:
                return
            priority = self._priority_of[item]
            self._insert(item, _OVERDUE, self.remove(item))
            self._own_priorities[item] = priority

    def wait_on(self, item: QueuedT) -> int:
        """An item has got a part of what it waits for, and counts no tokens now: it goes behind
        all others of its priority, and is not overdue. Returns the tokens that it counted."""
        tokens = self.tokens_of(item)
        if (own := self._own_priorities.get(item)) is not None:
            self.remove(item)
            self.add(item, own, 0)
            return tokens
        if tokens:
            self.recount(item, 0)
        self._groups[self._priority_of[item]].move_to_end(item)
        self._since[item] = self._clock()
        self._since.move_to_end(item)
        return tokens

    def recount(self, item: QueuedT, tokens: int) -> None:
        """An item counts this many tokens from now on."""
        priority = self._priority_of[item]
        group = self._groups[priority]
        change = tokens - group[item]
        group[item] = tokens
        self._group_tokens[priority] += change
        self.num_tokens += change

    def remove(self, item: QueuedT) -> int:
        """`item` leaves the queue. Returns the tokens that it counted."""
        priority = self._priority_of.pop(item)
        if self._since.pop(item, None) is None:
            del self._own_priorities[item]
        group = self._groups[priority]
        tokens = group.pop(item)
        self._group_tokens[priority] -= tokens
        self.num_tokens -= tokens
        if not group:
            del self._groups[priority], self._group_tokens[priority]
            del self._priorities[bisect_left(self._priorities, priority)]
        return tokens

    def _insert(self, item: QueuedT, priority: float, tokens: int) -> None:
        if priority not in self._groups:
            self._groups[priority] = OrderedDict()
            insort(self._priorities, priority)
        self._groups[priority][item] = tokens
        self._priority_of[item] = priority
        self._group_tokens[priority] += tokens
        self.num_tokens += tokens
