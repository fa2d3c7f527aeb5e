"""In which order waiting requests begin, and with which blocks.

A scheduler has a queue for each class of requests, and asks them in turn.
"""

from typing import NamedTuple, Protocol

from engine_core.schedulers.requests.kv_cache_manager import KVCacheManager
from engine_core.schedulers.requests.request import Request


class Claim(NamedTuple):
    """The blocks of all known tokens of a request that begins.

    The first `start` positions are in the cache: `shared` whole blocks of others, and what the step
    copies, (from, to), into the next one before its own work.
    """

    blocks: list[int]
    shared: int
    start: int
    copy: tuple[int, int] | tuple[()] = ()


def cached_prefix(kv: KVCacheManager, request: Request) -> list[int]:
    """The blocks of the longest prefix of its known tokens that is cached and may be shared. The
    last known token is never in it, because the next token is sampled from its logits."""
    request.hashes = kv.hash_blocks(request.tokens, request.hashes, request.salt)
    shareable = 0 if request.awaits_scores else (len(request.tokens) - 1) // kv.block_size
    return kv.match(request.hashes[:shareable])


def claim_from_cache(kv: KVCacheManager, request: Request) -> Claim | None:
    """The blocks of all its known tokens, of which the cached prefix is shared; None if too few are
    free."""
    shared = cached_prefix(kv, request)
    kv.touch(shared)
    fresh = kv.allocate(kv.blocks_for(len(request.tokens)) - len(shared))
    if fresh is None:
        kv.release(shared)
        return None
    return Claim(shared + fresh, len(shared), len(shared) * kv.block_size)


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
        """A preempted request waits again."""
        ...

    def remove(self, request: Request) -> None:
        """It has ended while it waited."""
        ...

    def next(self, step: int) -> Request | None:
        """The request that begins next, with this step; None if none may."""
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

    def computed(self, request: Request, step: int) -> None:
        """Its positions up to `submitted` are computed with this step."""
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
