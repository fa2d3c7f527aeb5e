"""Prefixes that running requests share in the KV cache, kept as requests begin and leave.

Workers attend to such a prefix once for all of them (cascade attention, Ye et al. 2024), by
`workers/kernels/attention/shared_prefix.py`.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter

import numpy as np

from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.request import UNSHARED, Request

_shared_block = attrgetter("shared_block")


class SharedPrefixes:
    """The shared prefixes of running requests. A request is in one at most.

    Where prefixes nest, it is in that which saves most reading, as far as is known when it begins.
    Steps without shared prefixes cost nothing.
    """

    def __init__(
        self, kv: KVCacheManager, running: Iterable[Request], enabled: bool = True
    ) -> None:
        self._kv, self._running, self._enabled = kv, running, enabled
        # By their last block, which all members hold: the blocks of each prefix, and its members.
        # Before it they have the same content: the same blocks or copies.
        self._depths: dict[int, int] = {}
        self._members: Counter[int] = Counter()

    def enter(self, request: Request, shared: int) -> None:
        """Enter a request that begins, with its first `shared` blocks in the cache."""
        depth = self._kv.held_by_others(request.blocks[:shared]) if self._enabled else 0
        if not depth:
            return
        ends = (block for block in reversed(request.blocks[:depth]) if block in self._depths)
        block = next(ends, UNSHARED)
        if self._depths.get(block, 0) < depth:
            block = self._deeper(request, block, depth)
        self._join(request, block)

    def leave(self, request: Request) -> None:
        """Remove a request that gives back its blocks, or joins another prefix."""
        block, request.shared_block = request.shared_block, UNSHARED
        if block != UNSHARED:
            self._members[block] -= 1
            if not self._members[block]:
                del self._members[block], self._depths[block]

    def __bool__(self) -> bool:
        return bool(self._depths)

    def members(self, block: int) -> int:
        """Count the requests of the prefix whose last block this is."""
        return self._members[block]

    def adjacent(self, requests: list[Request]) -> list[Request]:
        """Order `requests` so that those of a prefix are side by side, and those of none last."""
        if not self._depths:
            return requests
        return sorted(requests, key=_shared_block, reverse=True)

    def groups(self, batch: DecodeBatch) -> list[int]:
        """The groups of a step: `DecodeStep.groups`, flat."""
        if not self._depths:
            return []
        count, requests = len(batch.requests), batch.requests
        blocks = np.fromiter(map(_shared_block, requests), np.int64, count)
        for row in range(batch.num_decodes, count):
            # A chunk that begins within the prefix computes some of it.
            if batch.starts[row] < self._tokens(requests[row].shared_block):
                blocks[row] = UNSHARED
        changes = (np.flatnonzero(np.diff(blocks)) + 1).tolist()
        edges = sorted({0, batch.num_decodes, *changes, count})
        groups: list[int] = []
        for first, stop in pairwise(edges):
            if stop - first > 1 and blocks[first] != UNSHARED:
                groups += (first, stop - first, self._tokens(int(blocks[first])))
        return groups

    def _deeper(self, request: Request, block: int, depth: int) -> int:
        """Choose the last block of the newcomer's prefix. It is that of a new one of `depth` blocks
        if this saves more than the members' present ones, else `block`."""
        last = request.blocks[depth - 1]
        members = [
            other
            for other in self._running
            if len(other.blocks) >= depth
            and other.blocks[depth - 1] == last
            and other is not request
            and self._saved(other) < depth
        ]
        left = self._depths.get(block, 0) + sum(map(self._saved, members))
        if len(members) * depth <= left:
            return block
        self._depths[last] = depth
        for other in members:
            self.leave(other)
            self._join(other, last)
        return last

    def _join(self, request: Request, block: int) -> None:
        if block != UNSHARED:
            request.shared_block = block
            self._members[block] += 1

    def _saved(self, request: Request) -> int:
        """Blocks that need not be read for a request."""
        block = request.shared_block
        return self._depths[block] if self._members[block] > 1 else 0

    def _tokens(self, block: int) -> int:
        return self._depths.get(block, 0) * self._kv.block_size
