"""The queue of the batch class: group by group, metered, with blocks reserved for what will grow.

The method is that of BatchLLM (arXiv:2412.03594): groups whose work is mostly decoding begin first,
and prompts fill the steps which decoding alone does not.
"""

import heapq
import math
from itertools import count

from engine_core.job import PrefixGroup
from engine_core.schedulers.requests.group_state import GroupState
from engine_core.schedulers.requests.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.output_lengths import OutputLengths
from engine_core.schedulers.requests.queue_policy import Claim, claim_from_cache
from engine_core.schedulers.requests.request import Request

_CHANGED = 1.25
"""New groups are put in order anew when outputs have become longer or shorter by this factor."""

_CATCH_UP = 1.25
"""More prompt tokens a step than balance endings: rows hold slots while their prompts are computed,
and ends come in bursts. With 32 slots steps are then filled to 96 % in place of 89."""


class GroupQueue:
    """Members of a group begin side by side. While one computes the prefix, other groups go on.

    Endings and beginnings balance: of prompts, a step takes what as many rows as can run need in
    the time of an output, and at least what fills a step that is worth its fixed cost.
    Implements `QueuePolicy`.
    """

    def __init__(self, kv: KVCacheManager, max_running: int, step_tokens: int) -> None:
        """A device computes efficiently from `step_tokens` a step on."""
        self._kv = kv
        self.num_tokens = self._num_waiting = 0
        self.running: dict[Request, int] = {}  # the blocks that each is expected to need
        self._growth = 0  # blocks that those which run are still expected to need
        self._max_running, self._step_tokens = max_running, step_tokens
        self._lengths = OutputLengths()
        self._groups: dict[PrefixGroup, GroupState] = {}
        self._open: dict[GroupState, None] = {}  # those which have begun, in that order
        self._fresh: dict[GroupState, None] = {}  # those not in `_heap` yet
        self._heap: list[tuple[float, int, GroupState]] = []
        self._numbers = count()
        self._ordered_by: float | None = None
        self._rows = self._row_tokens = 0  # all that came: rows, and tokens to compute for them

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, request: Request) -> None:
        group = self._state_of(request)
        own = len(request.tokens) - group.prefix_len
        self._rows += 1
        self._row_tokens += own
        if group.running:
            self._open[group] = None
        elif not group.waiting:
            self._row_tokens += group.prefix_len
            self.num_tokens += group.prefix_len
            group.untouched = True
            self._fresh[group] = None
        self._wait(group, request, own)

    def put_back(self, request: Request) -> None:
        group = self._state_of(request)
        self._wait(group, request, len(request.tokens) - group.prefix_len)
        group.waiting.move_to_end(request, last=False)
        self._open[group] = None

    def remove(self, request: Request) -> None:
        group = self._state_of(request)
        self._leave(group, request)
        self._forget_if_over(request, group)

    def next(self, step: int) -> Request | None:
        for group in self._open:
            if (request := group.ready(step)) is not None:
                return request
        self._order()
        while self._heap:
            group = heapq.heappop(self._heap)[2]
            if group.waiting and group not in self._open:
                self._open[group] = None
                if (request := group.ready(step)) is not None:
                    return request
        return None

    def quota(self, decode_rows: int, micro_batches: int) -> float:
        if not self._rows:
            return 0.0
        computed = self._row_tokens / self._rows
        output = self._mean_output()
        held = self._kv.num_blocks * self._kv.block_size / (computed + output)
        balance = _CATCH_UP * min(self._max_running, held) * computed / output / micro_batches
        return math.ceil(max(balance, self._step_tokens - decode_rows, 1))

    def claim(self, request: Request) -> Claim | None:
        group = self._state_of(request)
        if self.running and self._kv.num_free < self._growth + self._needed(request, group):
            return None
        while (claim := self._claim_of(request, group)) is None:
            if not self.unpin_idle(group) and (self.running or not self._unpin(group)):
                return None
        return claim

    def begun(self, request: Request) -> None:
        group = self._state_of(request)
        self._leave(group, request)
        self._touch(group)
        group.begun(request)
        self.running[request] = needed = self._expected_blocks(request)
        self._growth += max(0, needed - len(request.blocks))

    def computed(self, request: Request, step: int) -> None:
        self._state_of(request).computed(request, step, self._kv)

    def grown(self, request: Request) -> None:
        self._growth -= len(request.blocks) <= self.running[request]

    def left(self, request: Request) -> None:
        self._growth -= max(0, self.running.pop(request) - len(request.blocks))
        group = self._state_of(request)
        group.left(request)
        self._forget_if_over(request, group)

    def finished(self, request: Request) -> None:
        self._lengths.finish(request)

    @property
    def youngest(self) -> Request | None:
        """The one that runs and began last."""
        return next(reversed(self.running), None)

    def unpin_idle(self, spared: GroupState | None = None) -> bool:
        """Give up the pins of one group of which no member runs. False if there is none."""
        idle = (group for group in self._open if not group.running and group is not spared)
        return any(self._unpin(group) for group in idle)

    def unpin_any(self) -> bool:
        """Give up the pins of one group. False if there is none."""
        return any(self._unpin(group) for group in self._open)

    def _unpin(self, group: GroupState) -> bool:
        pinned = bool(group.pinned)
        group.unpin(self._kv)
        return pinned

    def _state_of(self, request: Request) -> GroupState:
        assert request.group is not None, "it is of the batch class"
        group = self._groups.get(request.group)
        if group is None:
            group = self._groups[request.group] = GroupState(request.group.prefix_len)
        return group

    def _wait(self, group: GroupState, request: Request, tokens: int) -> None:
        group.waiting[request] = tokens
        self._num_waiting += 1
        self.num_tokens += tokens

    def _leave(self, group: GroupState, request: Request) -> None:
        self._num_waiting -= 1
        self.num_tokens -= group.waiting.pop(request)
        if not group.waiting:
            group.unpin(self._kv)
            self._open.pop(group, None)

    def _touch(self, group: GroupState) -> None:
        self.num_tokens -= group.prefix_len * group.untouched
        group.untouched = False

    def _forget_if_over(self, request: Request, group: GroupState) -> None:
        if request.group is not None and not group.waiting and not group.running:
            self._touch(group)
            self._fresh.pop(group, None)
            del self._groups[request.group]

    def _order(self) -> None:
        """Put the new groups in order: those with the largest share of decoding first."""
        mean, before = self._lengths.mean, self._ordered_by
        if mean is not None and (
            before is None or not before / _CHANGED < mean < before * _CHANGED
        ):
            self._ordered_by = mean
            self._fresh |= dict.fromkeys(group for _, _, group in self._heap)
            self._heap.clear()
        for group in self._fresh:
            if not group.waiting:
                continue
            outputs = sum(map(self._lengths.expected, group.waiting))
            computed = group.prefix_len + sum(group.waiting.values())
            heapq.heappush(self._heap, (-outputs / computed, next(self._numbers), group))
        self._fresh.clear()

    def _mean_output(self) -> float:
        """The expected output of what runs, or else of what waits first."""
        if self._lengths.mean is not None:
            return max(1.0, self._lengths.mean)
        request = next(iter(self.running), None)
        if request is None:
            request = next(iter(next(iter(self._groups.values())).waiting))
        return self._lengths.expected(request)

    def _expected_blocks(self, request: Request) -> int:
        return self._kv.blocks_for(
            min(request.max_len, request.prompt_len + math.ceil(self._lengths.expected(request)))
        )

    def _needed(self, request: Request, group: GroupState) -> int:
        """Free blocks that it is expected to take up to its end."""
        return self._expected_blocks(request) - (
            len(group.pinned) and group.prefix_len // self._kv.block_size
        )

    def _claim_of(self, request: Request, group: GroupState) -> Claim | None:
        """From the pinned prefix; from the cache if it has run before: that may hold more."""
        if not group.pinned or len(request.tokens) > request.prompt_len:
            return claim_from_cache(self._kv, request)
        return group.claim(request, self._kv)
