"""Cached blocks by their tokens: finds the one that begins like a prompt for longest.

A hash finds only whole blocks. Here a block also counts for a part of its tokens, which whoever
shares them copies into a block of its own.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from operator import itemgetter
from typing import Final

import numpy as np

BlockHash = bytes
Scope = Hashable
"""Among whom parts of blocks are shared: a key, a job, the batch band."""

ID_BYTES: Final = 4
NO_MATCH: Final = (-1, 0)

_tokens = itemgetter(0)


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two sequences of int32 begin with alike."""
    most = min(len(one), len(other)) // ID_BYTES
    if not most:
        return 0
    different = np.frombuffer(one, np.int32, most) != np.frombuffer(other, np.int32, most)
    first = int(different.argmax())
    return first if different[first] else most


class ChildBlocks:
    """Blocks by their parent, the hash of all before them, and by scope.

    They are sorted by their tokens (int32 bytes, of full blocks and of others), so that of all that
    begin like a prompt, one of the two beside its place does so for longest. Only tokens whose
    positions are computed are in it.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[BlockHash, Scope], list[tuple[bytes, int]]] = {}
        self._places: dict[int, dict[tuple[BlockHash, Scope], bytes]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._places

    def add(self, block: int, parent: BlockHash, scope: Scope, tokens: bytes) -> None:
        """`block` holds these tokens behind `parent`: more than when it was added before."""
        place, places = (parent, scope), self._places.setdefault(block, {})
        if (fewer := places.get(place)) is not None:
            self._discard(block, place, fewer)
        places[place] = tokens
        insort(self._children.setdefault(place, []), (tokens, block))

    def forget(self, block: int) -> None:
        """`block` is about to hold something else."""
        for place, tokens in self._places.pop(block, {}).items():
            self._discard(block, place, tokens)

    def longest(self, parent: BlockHash, scope: Scope, tokens: bytes) -> tuple[int, int]:
        """The block that begins with most of `tokens`, and how many these are, or `NO_MATCH`."""
        children = self._children.get((parent, scope), [])
        place = bisect_left(children, (tokens,))
        beside = children[max(0, place - 1) : place + 1]
        found = [(common_tokens(own, tokens), block) for own, block in beside]
        count, block = max(found, default=(0, -1))
        return (block, count) if count else NO_MATCH

    def longest_whole(self, parent: BlockHash, scope: Scope, tokens: bytes) -> tuple[int, int]:
        """Find likewise, of the blocks that `tokens` go on from with all that they hold."""
        children = self._children.get((parent, scope), [])
        while place := bisect_right(children, tokens, key=_tokens):
            own, block = children[place - 1]
            count = common_tokens(own, tokens)
            if count * ID_BYTES == len(own):
                return block, count
            # What `tokens` go on from, this neighbour does, too.
            tokens = tokens[: count * ID_BYTES]
        return NO_MATCH

    def check_integrity(self) -> None:
        """Raise AssertionError unless every place of a block has it, and nothing else is there."""
        listed = {(place, *each) for place, own in self._children.items() for each in own}
        kept = {
            (place, tokens, block)
            for block, places in self._places.items()
            for place, tokens in places.items()
        }
        assert listed == kept, "a block is not where its tokens are"
        assert all(own == sorted(own) for own in self._children.values()), "children are not sorted"

    def _discard(self, block: int, place: tuple[BlockHash, Scope], tokens: bytes) -> None:
        children = self._children[place]
        del children[bisect_left(children, (tokens, block))]
        if not children:
            del self._children[place]
