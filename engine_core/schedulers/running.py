"""The requests that run, in the order in which they began; their slots, sums of their tokens."""

from collections.abc import Collection, Iterator

from engine_core.schedulers.request import Request, Status


class RunningRequests:
    """An ordered set: a request leaves from anywhere at no cost.

    prompts      those with known tokens that are not submitted: no step samples for them yet
    unsubmitted  the tokens of `prompts` that are not submitted
    contexts     positions submitted of the others, which generate
    free_slots   slots that no request holds
    """

    def __init__(self, slots: int) -> None:
        self.prompts: dict[Request, None] = {}
        self.unsubmitted = self.contexts = 0
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
    def youngest(self) -> Request:
        """The one that began last."""
        return next(reversed(self._requests))

    def beside(self, others: Collection[Request]) -> tuple[int, int]:
        """Without these `others`: how many generate, and how many tokens of their prompts are not
        submitted."""
        prompts = sum(request not in others for request in self.prompts)
        generating = len(self._requests) - len(others) - prompts
        return generating, self.unsubmitted_beside(others)

    def unsubmitted_beside(self, others: Collection[Request]) -> int:
        """How many prompt tokens are not submitted, without those of `others`."""
        if not others:
            return self.unsubmitted
        prompts = (request for request in self.prompts if request not in others)
        return sum(len(request.tokens) - request.submitted for request in prompts)

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
        self.unsubmitted += len(request.tokens) - start

    def chunk_submitted(self, request: Request, length: int) -> None:
        """A chunk of its prompt is in a step; its last one, if no known token is left."""
        self.unsubmitted -= length
        if request.submitted == len(request.tokens):
            del self.prompts[request]
            self.contexts += request.submitted

    def leave(self, request: Request) -> None:
        """It gives back its slot."""
        del self._requests[request]
        if request in self.prompts:
            del self.prompts[request]
            self.unsubmitted -= len(request.tokens) - request.submitted
        else:
            self.contexts -= request.submitted
        self.free_slots.append(request.slot)
        request.slot = -1
