"""The order in which waiting requests or jobs of one kind begin: by API key, priority, age.

The order of kinds is in `engine_core/schedulers/decoder.py` and `prefill_only.py`.
"""

import heapq
import sys
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, Generic, TypeVar

from engine_core.loop.fair_queue import KeyTurns
from engine_core.messages import NO_KEY, KeyShare

QueuedT = TypeVar("QueuedT", bound=Hashable)

_OVERDUE: Final = -sys.float_info.max
"""Before every priority."""


class PriorityQueue(Generic[QueuedT]):
    """An ordered set by (priority, arrival), lower priorities first, of items of one `key`.

    Overdue items, which have waited longer than `max_wait` seconds, go before all others: so no
    priority makes an item wait for ever. Each item counts the prompt tokens that it was added with.
    """

    def __init__(self, max_wait: float, clock: Callable[[], float], key: KeyShare = NO_KEY) -> None:
        self.key = key
        self.num_tokens = 0
        self._max_wait, self._clock = max_wait, clock
        self._since: OrderedDict[QueuedT, float] = OrderedDict()  # of those not overdue, ascending
        self._groups: dict[float, OrderedDict[QueuedT, int]] = {}
        self._priorities: list[float] = []  # the keys of `_groups`, ascending
        self._own_priority: dict[QueuedT, float] = {}
        self._group_tokens: Counter[float] = Counter()

    def __len__(self) -> int:
        return len(self._own_priority)

    def __iter__(self) -> Iterator[QueuedT]:
        for priority in self._priorities:
            yield from self._groups[priority]

    def groups(self) -> list[Collection[QueuedT]]:
        """The items of each priority, the lowest first."""
        return [self._groups[priority].keys() for priority in self._priorities]

    def tokens_of(self, item: QueuedT) -> int:
        return self._groups[self._priority(item)][item]

    def tokens_before(self, priority: int) -> int:
        """Tokens of the items that begin before a new one of `priority`."""
        return sum([tokens for other, tokens in self._group_tokens.items() if other <= priority])

    def add(self, item: QueuedT, priority: float, tokens: int) -> None:
        self._own_priority[item] = priority
        self._since[item] = self._clock()
        self._insert(item, tokens)

    def promote_overdue(self) -> None:
        """Move overdue items before every priority."""
        limit = self._clock() - self._max_wait
        while self._since:
            item, since = next(iter(self._since.items()))
            if since > limit:
                return
            self.hurry(item)

    def hurry(self, item: QueuedT) -> None:
        """Make an item overdue."""
        if item in self._since:
            tokens = self._take_out(item)
            del self._since[item]
            self._insert(item, tokens)

    def wait_on(self, item: QueuedT) -> int:
        """Move an item that got a part of what it waits for behind all others of its priority.

        It counts no tokens now, and is not overdue. Returns the tokens that it counted."""
        tokens = self.begun(item)
        if item in self._since:
            self._groups[self._own_priority[item]].move_to_end(item)
            self._since.move_to_end(item)
            self._since[item] = self._clock()
        else:
            self._take_out(item)
            self._since[item] = self._clock()
            self._insert(item, 0)
        return tokens

    def begun(self, item: QueuedT) -> int:
        """Count no tokens of an item from now on. Returns those that it counted."""
        priority = self._priority(item)
        group = self._groups[priority]
        if tokens := group[item]:
            group[item] = 0
            self._count(priority, -tokens)
        return tokens

    def remove(self, item: QueuedT) -> int:
        """Remove an item. Returns the tokens that it counted."""
        tokens = self._take_out(item)
        del self._own_priority[item]
        self._since.pop(item, None)
        return tokens

    def _priority(self, item: QueuedT) -> float:
        return self._own_priority[item] if item in self._since else _OVERDUE

    def _insert(self, item: QueuedT, tokens: int) -> None:
        priority = self._priority(item)
        if priority not in self._groups:
            self._groups[priority] = OrderedDict()
            insort(self._priorities, priority)
        self._groups[priority][item] = tokens
        self._count(priority, tokens)

    def _take_out(self, item: QueuedT) -> int:
        priority = self._priority(item)
        group = self._groups[priority]
        tokens = group.pop(item)
        self._count(priority, -tokens)
        if not group:
            del self._groups[priority], self._group_tokens[priority]
            del self._priorities[bisect_left(self._priorities, priority)]
        return tokens

    def _count(self, priority: float, tokens: int) -> None:
        self._group_tokens[priority] += tokens
        self.num_tokens += tokens


ItemT = TypeVar("ItemT", bound=Hashable)


class WaitingQueue(Generic[ItemT]):
    """Keys take turns by their weights, in prompt tokens. The items of each go by priority and age.

    Preempted items come before all keys, in the order in which they had begun: so nothing makes
    them start over for ever. Their key was charged for them when they began.
    """

    def __init__(self, max_wait: float, clock: Callable[[], float]) -> None:
        self.num_tokens = 0
        self._max_wait, self._clock = max_wait, clock
        self._turns = KeyTurns()
        # Those of keys that wait for nothing now are kept empty: to make one takes microseconds.
        self._queues: dict[int, PriorityQueue[ItemT]] = {}
        self._queue_of: dict[ItemT, PriorityQueue[ItemT]] = {}
        self._preempted: OrderedDict[ItemT, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue_of) + len(self._preempted)

    def __iter__(self) -> Iterator[ItemT]:
        """In the order in which they begin, if no other comes."""
        yield from self._preempted
        heads = [
            (self._turns.times[number], place, self._queues[number], iter(self._queues[number]))
            for place, number in enumerate(self._turns.waiting)
        ]
        heapq.heapify(heads)
        while heads:
            time, place, queue, items = heads[0]
            if (item := next(items, None)) is None:
                heapq.heappop(heads)
                continue
            later = time + queue.tokens_of(item) / queue.key.weight
            heapq.heapreplace(heads, (later, place, queue, items))
            yield item

    def first(self) -> ItemT | None:
        if self._preempted:
            return next(iter(self._preempted))
        if not self._queue_of:
            return None
        return next(iter(self._queues[self._turns.first().number]))

    def in_turn(self) -> list[PriorityQueue[ItemT]]:
        """The queues of the keys, the one whose turn it is first."""
        numbers = sorted(self._turns.waiting, key=self._turns.times.__getitem__)
        return [self._queues[number] for number in numbers]

    def tokens_before(self, priority: int, key: KeyShare | None = None) -> int:
        """Tokens of the items that begin before a new one of `priority` and `key`. None: as if all
        were of one key.

        While the items of a key are served, each other key gets tokens by its weight."""
        if not self.num_tokens:
            return 0
        first = sum(self._preempted.values())
        if key is None:
            queues = self._queues.values()
            return first + sum(queue.tokens_before(priority) for queue in queues)
        own = self._queues.get(key.number)
        tokens = 0 if own is None else own.tokens_before(priority)
        if own is not None and len(self._queues) == 1:
            return first + tokens
        beside = sum(
            min(queue.num_tokens, int(tokens * queue.key.weight / key.weight))
            for queue in self._queues.values()
            if queue is not own
        )
        return first + tokens + beside

    def add(self, item: ItemT, key: KeyShare, priority: float, tokens: int) -> None:
        queue = self._queues.get(key.number)
        if queue is None or not queue:
            # The weight may be another than before.
            if queue is None or queue.key != key:
                queue = PriorityQueue[ItemT](self._max_wait, self._clock, key)
                self._queues[key.number] = queue
            self._turns.begin(key)
        queue.add(item, priority, tokens)
        self._queue_of[item] = queue
        self.num_tokens += tokens

    def put_first(self, item: ItemT, tokens: int) -> None:
        """Put an item whose turn had come before all others."""
        self._preempted[item] = tokens
        self._preempted.move_to_end(item, last=False)
        self.num_tokens += tokens

    def promote_overdue(self) -> None:
        for queue in self._queues.values():
            queue.promote_overdue()

    def given(self, item: ItemT, tokens: int) -> None:
        """Charge the key of an item for tokens in a step."""
        if (queue := self._queue_of.get(item)) is not None:
            self._turns.count(queue.key, tokens)

    def hurry(self, item: ItemT) -> None:
        self._queue_of[item].hurry(item)

    def wait_on(self, item: ItemT) -> None:
        """Move an item that got a part of what it waits for, as `PriorityQueue.wait_on` does."""
        self.num_tokens -= self._queue_of[item].wait_on(item)

    def remove(self, item: ItemT) -> None:
        if item in self._preempted:
            self.num_tokens -= self._preempted.pop(item)
            return
        queue = self._queue_of.pop(item)
        self.num_tokens -= queue.remove(item)
        if not queue:
            self._turns.end(queue.key)
