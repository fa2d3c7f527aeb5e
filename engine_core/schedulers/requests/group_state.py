"""A group of the batch class: its prefix, the member that computes it, and the blocks it pins."""

from collections import OrderedDict
from dataclasses import dataclass, field

from engine_core.schedulers.requests.kv_cache_manager import BlockHash, KVCacheManager
from engine_core.schedulers.requests.queue_policy import Claim
from engine_core.schedulers.requests.request import Request


@dataclass(slots=True, eq=False)
class GroupState:
    """A group with members that wait or run.

    The first member that begins leads: it computes the prefix and its own part as one prompt. When
    the step is submitted that computes the prefix's last token, the group pins the blocks of the
    prefix: whole ones, and one of which the rest is the leader's own. Members begin with a later
    step. They share the whole blocks; that last one is copied into a block of their own.

    waiting    its members that wait, in order, and the tokens that each counts
    untouched  no member has begun: the prefix counts as waiting
    running    how many run
    leader     computes the prefix
    pinned     the blocks that hold the prefix, with a reference of the group's own; or none
    hashes     of the prefix's whole blocks, while it is pinned
    pinned_in  the step that computes the last of it
    """

    prefix_len: int
    waiting: OrderedDict[Request, int] = field(default_factory=OrderedDict[Request, int])
    untouched: bool = False
    running: int = 0
    leader: Request | None = None
    pinned: list[int] = field(default_factory=list[int])
    hashes: list[BlockHash] = field(default_factory=list[BlockHash])
    pinned_in: int = -1

    def ready(self, step: int) -> Request | None:
        """The member that may begin with this step; None while the prefix is computed."""
        if self.leader is not None or (self.pinned and self.pinned_in >= step):
            return None
        request = next(iter(self.waiting), None)
        return None if request is None or request.in_flight else request

    def begun(self, request: Request) -> None:
        """It runs. It leads if others wait for a prefix that is not computed."""
        self.running += 1
        if self.prefix_len and self.waiting and not self.pinned:
            self.leader = request

    def computed(self, request: Request, step: int, kv: KVCacheManager) -> None:
        """Pin the prefix if this step computes the last of it."""
        if self.leader is not request or request.submitted < self.prefix_len:
            return
        self.leader = None
        if self.waiting:
            self.pinned, self.pinned_in = request.blocks[: kv.blocks_for(self.prefix_len)], step
            self.hashes = request.hashes[: self.prefix_len // kv.block_size]
            kv.touch(self.pinned)

    def left(self, request: Request) -> None:
        """It runs no longer. If it has led, the next member does."""
        self.running -= 1
        if self.leader is request:
            self.leader = None

    def unpin(self, kv: KVCacheManager) -> None:
        """Give up the pinned blocks: a later member finds what is left of them in the cache."""
        kv.release(self.pinned)
        self.pinned = []

    def claim(self, request: Request, kv: KVCacheManager) -> Claim | None:
        """The blocks of a member's known tokens, of which the pinned ones hold the prefix; None if
        too few are free."""
        whole, rest = divmod(self.prefix_len, kv.block_size)
        fresh = kv.allocate(kv.blocks_for(len(request.tokens)) - whole)
        if fresh is None:
            return None
        request.hashes = kv.hash_blocks(request.tokens, self.hashes, request.salt)
        shared = self.pinned[:whole]
        kv.touch(shared)
        copy = (self.pinned[whole], fresh[0]) if rest else ()
        return Claim(shared + fresh, whole, self.prefix_len, copy)
