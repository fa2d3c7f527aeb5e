"""The requests that run, in the order in which they began; their slots, sums of their tokens."""

from collections.abc import Iterator

from engine_core.loop.jobs import JobKind
from engine_core.schedulers.request import Request, Status


class RunningRequests:
    """An ordered set: a request leaves from anywhere at no cost.

    prompts      those with known tokens that are not submitted: no step samples for them yet
    rows         how many run, of each `JobKind`
    unsubmitted  the tokens of `prompts` that are not submitted, of each kind
    contexts     positions submitted of the others, which generate
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
        """How many requests have no known token that is not submitted."""
        return len(self._requests) - len(self.prompts)

    @property
    def first_to_give_way(self) -> Request:
        """The one that began last, of the last kind that runs."""
        last = max(kind for kind in JobKind if self.rows[kind])
        return next(request for request in reversed(self._requests) if request.kind == last)

    def tokens_before(self, limited: int) -> int:
        """What a step could take of the kinds before this one: a token of each request that
        generates, and all of prompts that is not submitted."""
        prompts = sum(request.kind < limited for request in self.prompts)
        return sum(self.rows[:limited]) - prompts + sum(self.unsubmitted[:limited])

    def ready(self, oldest_step: int) -> list[Request]:
        """Those that generate and can go on: the last token is confirmed, or the oldest step
        samples it and it cannot reach `max_len`."""
        return [
            request
            for request in self._requests
            if (last := request.last_step) >= 0
            and (
                not request.unresolved
                or (last == oldest_step and request.submitted + 1 < request.max_len)
            )
        ]

    def begin(self, request: Request, start: int) -> None:
        """It gets a slot; its first `start` positions are in the cache."""
        request.slot = self.free_slots.pop()
        request.status = Status.RUNNING
        self._requests[request] = self.prompts[request] = None
        self.rows[request.kind] += 1
        self.unsubmitted[request.kind] += len(request.tokens) - start

    def chunk_submitted(self, request: Request, length: int) -> None:
        """A chunk of its prompt is in a step; its last one, if no known token is left."""
        self.unsubmitted[request.kind] -= length
        if request.submitted == len(request.tokens):
            del self.prompts[request]
            self.contexts += request.submitted

    def promote(self, request: Request) -> None:
        """A surplus request becomes a regular one."""
        left = len(request.tokens) - request.submitted if request in self.prompts else 0
        for kind, sign in ((request.kind, -1), (JobKind.SMALL, 1)):
            self.rows[kind] += sign
            self.unsubmitted[kind] += sign * left

    def leave(self, request: Request) -> None:
        """It gives back its slot."""
        del self._requests[request]
        self.rows[request.kind] -= 1
        if request in self.prompts:
            del self.prompts[request]
            self.unsubmitted[request.kind] -= len(request.tokens) - request.submitted
        else:
            self.contexts -= request.submitted
        self.free_slots.append(request.slot)
        request.slot = -1
