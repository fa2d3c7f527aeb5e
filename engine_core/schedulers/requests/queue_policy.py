"""In which order waiting requests begin, and with which blocks.

A scheduler has a queue for each class of requests, and asks them in turn.
"""

from typing import Protocol

from engine_core.schedulers.requests.cached_prefix import Claim
from engine_core.schedulers.requests.request import Request


class QueuePolicy(Protocol):
    """Holds the waiting requests of a class, and hears what happens to those that run."""

    def __len__(self) -> int: ...

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that are to be computed for those that wait, about."""
        ...

    def add(self, request: Request) -> None:
        """A new request waits."""
        ...

    def put_back(self, request: Request) -> None:
        """A request that was preempted, or held, waits again: before all others."""
        ...

    def hold(self, request: Request) -> None:
        """A request whose turn has come waits for another until `put_back`, and counts."""
        ...

    def remove(self, request: Request) -> None:
        """It has ended while it waited."""
        ...

    def next(self) -> Request | None:
        """The request that begins next, or None if none may."""
        ...

    def quota(self, decode_rows: int, micro_batches: int) -> float:
        """How many prompt tokens a step may take beside so many decode rows, as one of so many
        micro-batches."""
        ...

    def claim(self, request: Request) -> Claim | None:
        """Take the blocks with which it begins; None if too few are free."""
        ...

    def begun(self, request: Request) -> None:
        """It waits no longer and runs, with the blocks that it has claimed."""
        ...

    def grown(self, request: Request) -> None:
        """It has got one more block."""
        ...

    def left(self, request: Request) -> None:
        """It gives back its slot and its blocks."""
        ...

    def finished(self, request: Request) -> None:
        """It has come to its own end."""
        ...
