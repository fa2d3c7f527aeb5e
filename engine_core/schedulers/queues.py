"""In which order waiting requests begin, and with which blocks."""

import heapq
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from engine_core.schedulers.cached_prefix import Claim, cached_prefix, claim_from_cache
from engine_core.schedulers.kv_cache import KVCacheManager, common_tokens
from engine_core.schedulers.prompts_in_progress import LEAST_SHARED
from engine_core.schedulers.request import Request, Status
from engine_core.schedulers.waiting import WaitingQueue
from workers.contract.config import ExecutionConfig


class RequestQueue(ABC):
    """The requests of a class: those that wait, in order, and those that run, as they began."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self.running: dict[Request, None] = {}

    @abstractmethod
    def __len__(self) -> int:
        """How many wait."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Prompt tokens that are to be computed for those that wait, about."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Append a new request."""

    @abstractmethod
    def put_back(self, request: Request, shared: int) -> None:
        """Put a request before all others, which was preempted, or whose turn had come and which
        has waited for `shared` tokens of another."""

    @abstractmethod
    def next(self) -> Request | None:
        """Return the request that begins next, or None if none may."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Remove a request that has ended."""

    def take(self, request: Request) -> None:
        """Remove a request because its turn has come."""
        self.remove(request)

    def quota(self, decode_rows: int, micro_batches: int) -> float:
        """How many prompt tokens a step may take beside so many decode rows, as one of so many
        micro-batches."""
        del decode_rows, micro_batches
        return math.inf

    def claim(self, request: Request) -> Claim | None:
        """Take the blocks with which a request begins; None if too few are free."""
        return claim_from_cache(self._kv, request, cached_prefix(self._kv, request))

    def begun(self, request: Request) -> None:
        """Note that a request runs, with the blocks that it has claimed."""
        self.running[request] = None

    def left(self, request: Request) -> None:
        """Note that a request gives back its slot and its blocks."""
        del self.running[request]


class OnlineQueue(RequestQueue):
    """API keys take turns; first come, first served in each, priority by priority."""

    def __init__(self, kv: KVCacheManager, max_wait: float, clock: Callable[[], float]) -> None:
        super().__init__(kv)
        self.waiting: WaitingQueue[Request] = WaitingQueue(max_wait, clock)

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def num_tokens(self) -> int:
        return self.waiting.num_tokens

    def add(self, request: Request) -> None:
        self.waiting.add(request, request.job.message.key, request.priority, len(request.tokens))

    def put_back(self, request: Request, shared: int) -> None:
        del shared
        self.waiting.put_back(request, len(request.tokens))

    def first(self, tokens: int) -> Iterator[Request]:
        """Those that begin next, in order, while so many prompt tokens last."""
        self.waiting.promote_overdue()
        for request in self.waiting:
            if tokens <= 0 or request.in_flight:
                return
            yield request
            tokens -= len(request.tokens)

    def next(self) -> Request | None:
        self.waiting.promote_overdue()
        request = self.waiting.first()
        return None if request is None or request.in_flight else request

    def take(self, request: Request) -> None:
        self.waiting.given(request, len(request.tokens))
        self.remove(request)

    def remove(self, request: Request) -> None:
        self.waiting.remove(request)


class OutputLengths:
    """The mean of what has finished, at most a request's own bound; that bound before."""

    def __init__(self) -> None:
        self._finished = self._tokens = 0

    @property
    def mean(self) -> float | None:
        """Output tokens a finished request; None if none has finished."""
        return self._tokens / self._finished if self._finished else None

    def finish(self, request: Request) -> None:
        """Count a request that has come to its own end."""
        self._finished += 1
        self._tokens += len(request.tokens) - request.prompt_len

    def expected(self, request: Request) -> float:
        """Tokens, at least one."""
        most = request.max_len - request.prompt_len
        return max(1.0, most if self.mean is None else min(self.mean, most))


_CHANGED = 1.25
"""New runs are put in order anew when outputs have become longer or shorter by this factor."""

_CATCH_UP = 1.25
"""More prompt tokens a step than balance endings: rows hold slots while their prompts are computed,
and ends come in bursts. With 32 slots steps are then filled to 96 % in place of 89."""


@dataclass(slots=True, eq=False)
class _Run:
    """Rows that came one after the other and begin alike, with about `shared` tokens.

    `waiting` has what each adds to the tokens to compute. One that has `begun` stays before those
    that have not.
    """

    shared: int = 0
    begun: bool = False
    waiting: OrderedDict[Request, int] = field(default_factory=OrderedDict[Request, int])


class BatchQueue(RequestQueue):
    """Rows of a run begin side by side: what they share is still in the cache. So whoever sends
    many prompts sends them sorted by their tokens.

    Endings and beginnings balance: of prompts, a step takes what as many rows as can run need in
    the time of an output, and at least what fills a step that is worth its fixed cost.
    """

    def __init__(self, kv: KVCacheManager, max_running: int, step_tokens: int) -> None:
        """A device computes efficiently from `step_tokens` a step on."""
        super().__init__(kv)
        self._num_tokens = 0
        self._expected: dict[Request, int] = {}  # the blocks that each which runs will need
        self._growth = 0  # blocks that those which run are still expected to need
        self._max_running, self._step_tokens = max_running, step_tokens
        self._lengths = OutputLengths()
        self._run_of: dict[Request, _Run] = {}  # of those that wait
        self._newest: tuple[Request, _Run] | None = None
        self._returned = _Run(begun=True)  # those whose turn had come before
        self._open: dict[_Run, None] = {}  # those which have begun, in that order
        self._fresh: dict[_Run, None] = {}  # those not in `_heap` yet
        self._heap: list[tuple[float, int, _Run]] = []
        self._numbers = count()
        self._ordered_by: float | None = None
        self._rows = self._row_tokens = 0  # all that came: rows, and tokens to compute for them

    def __len__(self) -> int:
        return len(self._run_of)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def add(self, request: Request) -> None:
        run, own = self._joined(request)
        self._newest = request, run
        self._rows += 1
        self._row_tokens += own
        if not run.waiting:
            (self._open if run.begun else self._fresh)[run] = None
        run.waiting[request] = own
        self._run_of[request] = run
        self._num_tokens += own

    def put_back(self, request: Request, shared: int) -> None:
        run = self._run_of[request] = self._returned
        run.waiting[request] = tokens = len(request.tokens) - shared
        run.waiting.move_to_end(request, last=False)
        self._num_tokens += tokens

    def remove(self, request: Request) -> None:
        run = self._run_of.pop(request)
        self._num_tokens -= run.waiting.pop(request)
        if not run.waiting:
            self._open.pop(run, None)

    def next(self) -> Request | None:
        for run in (self._returned, *self._open):
            if (request := _first(run)) is not None:
                return request
        self._order()
        while self._heap:
            run = heapq.heappop(self._heap)[2]
            if run.waiting and not run.begun:
                run.begun = True
                self._open[run] = None
                if (request := _first(run)) is not None:
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
        found = cached_prefix(self._kv, request)
        if self.running:
            needed = self._expected_blocks(request) - self._kv.num_held(found.blocks)
            if self._kv.num_free < self._growth + needed:
                return None
        return claim_from_cache(self._kv, request, found)

    def begun(self, request: Request) -> None:
        super().begun(request)
        self._expected[request] = needed = self._expected_blocks(request)
        self._growth += max(0, needed - len(request.blocks))

    def grown(self, request: Request) -> None:
        """Note that a request has got one more block."""
        self._growth -= len(request.blocks) <= self._expected[request]

    def left(self, request: Request) -> None:
        super().left(request)
        self._growth -= max(0, self._expected.pop(request) - len(request.blocks))

    def finished(self, request: Request) -> None:
        """Note that a request has come to its own end: so long are outputs."""
        self._lengths.finish(request)

    def _joined(self, request: Request) -> tuple[_Run, int]:
        """The run of a new row, and how many tokens it adds to what is computed."""
        tokens = len(request.tokens)
        if self._newest is None or request.awaits_scores:
            return _Run(), tokens
        other, run = self._newest
        shared = 0
        if other.salt == request.salt:
            shared = common_tokens(other.tokens.tobytes(), request.tokens[:-1].tobytes())
        if shared < LEAST_SHARED:
            return _Run(), tokens
        # Behind a part that many share come runs of their own, each of which shares more.
        if 2 * shared < run.shared:
            return _Run(), tokens - shared
        run.shared = min(run.shared or shared, shared)
        return run, tokens - shared

    def _order(self) -> None:
        """Put the new runs in order: those with the largest share of decoding first."""
        mean, before = self._lengths.mean, self._ordered_by
        if mean is not None and (
            before is None or not before / _CHANGED < mean < before * _CHANGED
        ):
            self._ordered_by = mean
            self._fresh |= dict.fromkeys(run for _, _, run in self._heap)
            self._heap.clear()
        for run in self._fresh:
            if not run.waiting:
                continue
            outputs = sum(map(self._lengths.expected, run.waiting))
            computed = sum(run.waiting.values())
            heapq.heappush(self._heap, (-outputs / computed, next(self._numbers), run))
        self._fresh.clear()

    def _mean_output(self) -> float:
        """The expected output of what runs, or else of what waits first."""
        if self._lengths.mean is not None:
            return max(1.0, self._lengths.mean)
        request = next(iter(self.running), None) or next(iter(self._run_of), None)
        return 1.0 if request is None else self._lengths.expected(request)

    def _expected_blocks(self, request: Request) -> int:
        return self._kv.blocks_for(
            min(request.max_len, request.prompt_len + math.ceil(self._lengths.expected(request)))
        )


def _first(run: _Run) -> Request | None:
    """The row that may begin next."""
    request = next(iter(run.waiting), None)
    return None if request is None or request.in_flight else request


class RequestClasses:
    """A queue for each class, in the order in which their requests begin: those of a later class
    give way to regular ones. A large job has regular rows, too; its queue has the surplus ones."""

    def __init__(
        self,
        kv: KVCacheManager,
        config: ExecutionConfig,
        step_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        """A device computes efficiently from `step_tokens` a step on."""
        self._kv = kv
        self.regular = OnlineQueue(kv, config.max_priority_wait, clock)
        self.surplus = OnlineQueue(kv, config.max_priority_wait, clock)
        self.batch = BatchQueue(kv, config.max_running, step_tokens)
        self.queues: tuple[RequestQueue, ...] = (self.regular, self.surplus, self.batch)
        """By `JobKind`."""

    def __len__(self) -> int:
        """Requests that wait."""
        return sum(map(len, self.queues))

    @property
    def num_tokens(self) -> int:
        """Those of prompts that wait: of each at least one."""
        return self.regular.num_tokens + self.surplus.num_tokens + self.batch.num_tokens

    def tokens_before(self, limited: int) -> int:
        """The same of the classes before this one."""
        return sum(queue.num_tokens for queue in self.queues[:limited])

    def fit(self, slots: int, tokens: int, limited: int) -> bool:
        """All that wait, of classes before this one, could begin, and leave one of so many slots,
        a block, and one of so many tokens."""
        waiting, rows = self.tokens_before(limited), sum(map(len, self.queues[:limited]))
        blocks = waiting // self._kv.block_size + rows
        return rows < slots and waiting < tokens and blocks < self._kv.num_free

    @property
    def youngest_below(self) -> Request | None:
        """The youngest row of the last class that has any running; None if only the first has."""
        return next(reversed(self.batch.running or self.surplus.running), None)

    def of(self, request: Request) -> RequestQueue:
        """The queue of a request's class."""
        if request.job.is_batch:
            return self.batch
        return self.surplus if request.surplus else self.regular

    def running_from(self, limited: int) -> dict[Request, None]:
        """What runs of this class and those behind it."""
        return dict.fromkeys(row for queue in self.queues[limited:] for row in queue.running)

    def promote(self, request: Request, *, held: bool) -> None:
        """A surplus row is a regular one from now on. If it is `held`, it is in no queue."""
        request.surplus = False
        if request.status is Status.RUNNING:
            self.surplus.left(request)
            self.regular.begun(request)
        elif not held:
            self.surplus.remove(request)
            self.regular.add(request)
