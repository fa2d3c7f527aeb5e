"""The requests that wait for a slot, in a queue for each kind, and those that have one."""

import math
from collections.abc import Callable, Iterator

from engine_core.loop.jobs import Job, JobKind
from engine_core.messages import NO_KEY
from engine_core.schedulers.expected_growth import OutputLengths
from engine_core.schedulers.kv_cache import KVCacheManager, common_tokens
from engine_core.schedulers.prefixes import LEAST_SHARED
from engine_core.schedulers.prompt_budget import efficient_tokens
from engine_core.schedulers.request import Request
from engine_core.schedulers.waiting import WaitingQueue
from workers.contract.config import ExecutionConfig

_CATCH_UP = 1.25
"""Factor of the prompt tokens that balance endings, which come in bursts. With 32 slots it fills
steps to 96 % in place of 89."""


class RequestQueue(WaitingQueue[Request]):
    """API keys take turns, each by priority and age. Only rows of the job `alone` begin, if there
    is one."""

    alone: Job | None = None

    def __bool__(self) -> bool:
        """True if there is one that may begin."""
        return len(self) > 0 if self.alone is None else any(self._may_begin())

    def append(self, request: Request) -> None:
        message = request.job.message
        self.add(request, message.key, message.priority, request.own_tokens)

    def put_back(self, request: Request, shared: int) -> None:
        """Put a request before all others: preempted, or held for `shared` tokens of another."""
        del shared
        self.put_first(request, request.own_tokens)

    def arrivals(self, tokens: float) -> Iterator[Request]:
        """The requests that begin next, in order, while `tokens` of prompts last."""
        self.promote_overdue()
        for request in self._may_begin():
            if tokens <= 0 or request.in_flight:
                return
            yield request
            tokens -= request.own_tokens

    def next(self) -> Request | None:
        self.promote_overdue()
        request = self.first() if self.alone is None else next(self._may_begin(), None)
        return None if request is None or request.in_flight else request

    def _may_begin(self) -> Iterator[Request]:
        return (request for request in self if self.alone in (None, request.job))

    def take(self, request: Request) -> None:
        """Remove a request because its turn has come: its key is charged."""
        self.given(request, request.own_tokens)
        self.remove(request)


class BatchQueue(RequestQueue):
    """The queue of the batch band: rows begin in the order in which they came.

    They come sorted by their tokens, so what neighbours share is still in the cache. Beginnings
    balance endings (BatchLLM, arXiv:2412.03594).
    """

    def __init__(
        self,
        kv: KVCacheManager,
        outputs: OutputLengths,
        config: ExecutionConfig,
        clock: Callable[[], float],
    ) -> None:
        """`outputs` are those of the band's rows that have ended."""
        super().__init__(math.inf, clock)
        self._kv, self._outputs = kv, outputs
        self._max_running, self._step_tokens = config.max_running, efficient_tokens(config)
        self._rows = self._row_tokens = 0  # all that came: rows, and tokens to compute for them
        self._newest: Request | None = None

    def append(self, request: Request) -> None:
        own = len(request.tokens) - self._shared_with_last(request)
        self.add(request, NO_KEY, 0, own)
        self._newest = request
        self._rows += 1
        self._row_tokens += own

    def put_back(self, request: Request, shared: int) -> None:
        self.put_first(request, len(request.tokens) - shared)

    def quota(self, decode_rows: int, micro_batches: int) -> int:
        """The most prompt tokens of a step: what all rows that can run need in an output's time.

        At least those that make a step beside `decode_rows` worth its fixed cost."""
        if not self._rows:
            return 0
        computed, output = self._row_tokens / self._rows, self._output()
        each = self._kv.layout.blocks_held(math.ceil(computed + output))
        held = self._kv.num_blocks / each
        balance = _CATCH_UP * min(self._max_running, held) * computed / output / micro_batches
        return math.ceil(max(balance, self._step_tokens - decode_rows, 1))

    def _shared_with_last(self, request: Request) -> int:
        """Count the tokens that a new row begins with like the one before it."""
        other = self._newest
        if other is None or request.awaits_scores or other.salt != request.salt:
            return 0
        shared = common_tokens(other.tokens.tobytes(), request.tokens[:-1].tobytes())
        return shared if shared >= LEAST_SHARED else 0

    def _output(self) -> float:
        """Mean output tokens of ended rows, at first the most that the newest may have.

        At least 1: a row that embeds has none."""
        if (mean := self._outputs.mean()) is not None:
            return max(1.0, mean)
        newest = self._newest
        return 1.0 if newest is None else max(1.0, newest.max_len - newest.prompt_len)


class WaitingRequests:
    """A queue for each kind of rows, in the order in which they begin."""

    def __init__(
        self,
        kv: KVCacheManager,
        batch_outputs: OutputLengths,
        config: ExecutionConfig,
        clock: Callable[[], float],
    ) -> None:
        self._kv = kv
        self.small = RequestQueue(config.max_priority_wait, clock)
        self.batch = BatchQueue(kv, batch_outputs, config, clock)
        large = RequestQueue(config.max_priority_wait, clock)
        self.queues: tuple[RequestQueue, ...] = (self.small, large, self.batch)
        """By `JobKind`."""

    def __len__(self) -> int:
        return sum(map(len, self.queues))

    def tokens_before(self, limited: int) -> int:
        """Prompt tokens that wait, of kinds before `limited`."""
        return sum([queue.num_tokens for queue in self.queues[:limited]])

    def fit(self, slots: int, tokens: int, limited: int) -> bool:
        """True if a slot, a block and a token remain after admitting the kinds before `limited`."""
        waiting, rows = self.tokens_before(limited), sum(map(len, self.queues[:limited]))
        blocks = self._kv.layout.blocks_held(waiting, rows)
        return rows < slots and waiting < tokens and blocks < self._kv.num_free

    def of(self, request: Request) -> RequestQueue:
        return self.queues[request.kind]

    def isolate(self, job: Job | None) -> None:
        """Let only rows of a job begin, or those of all again."""
        for queue in self.queues:
            queue.alone = job


class RunningRequests:
    """The requests that run, in the order in which they began, and sums over them.

    prompts      those with known tokens that are not submitted
    rows         how many run, of each kind
    unsubmitted  tokens of `prompts` that are not submitted, of each kind
    contexts     submitted positions of the others, which generate
    free_slots   slots that no request holds
    """

    def __init__(self, slots: int) -> None:
        self.prompts: dict[Request, None] = {}
        self.rows, self.unsubmitted = [0] * len(JobKind), [0] * len(JobKind)
        self.contexts = 0
        self.free_slots = list(range(slots - 1, -1, -1))
        self._requests: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def generating(self) -> int:
        return len(self._requests) - len(self.prompts)

    @property
    def first_to_give_way(self) -> Request:
        """The request that began last, of the last kind that runs."""
        last = max(kind for kind in JobKind if self.rows[kind])
        return next(request for request in reversed(self._requests) if request.kind == last)

    def tokens_before(self, limited: int) -> int:
        """Tokens that a step could take of the kinds before `limited`."""
        prompts = sum(request.kind < limited for request in self.prompts)
        return sum(self.rows[:limited]) - prompts + sum(self.unsubmitted[:limited])

    def ready(self, oldest_step: int) -> list[Request]:
        """Generating requests whose last token is confirmed, or is sampled by the oldest step and
        cannot reach `max_len`."""
        return [
            request
            for request in self._requests
            if (last := request.last_step) >= 0
            and (
                not request.unresolved
                or (last == oldest_step and request.submitted + 1 < request.max_len)
            )
        ]

    def begin(self, request: Request, start: int, shared_blocks: int) -> None:
        """Give a request a slot. Its first positions are in the cache, as in `Request.begin`."""
        request.begin(start, shared_blocks)
        request.slot = self.free_slots.pop()
        self._requests[request] = self.prompts[request] = None
        self.rows[request.kind] += 1
        self.unsubmitted[request.kind] += len(request.tokens) - start

    def chunk_submitted(self, request: Request, length: int) -> None:
        self.unsubmitted[request.kind] -= length
        if request.submitted == len(request.tokens):
            del self.prompts[request]
            self.contexts += request.submitted

    def promote(self, request: Request) -> None:
        left = len(request.tokens) - request.submitted if request in self.prompts else 0
        for kind, sign in ((request.kind, -1), (JobKind.SMALL, 1)):
            self.rows[kind] += sign
            self.unsubmitted[kind] += sign * left

    def leave(self, request: Request) -> None:
        del self._requests[request]
        self.rows[request.kind] -= 1
        if request in self.prompts:
            del self.prompts[request]
            self.unsubmitted[request.kind] -= len(request.tokens) - request.submitted
        else:
            self.contexts -= request.submitted
        self.free_slots.append(request.slot)
        request.slot = -1
