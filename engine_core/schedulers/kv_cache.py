"""The blocks of the paged KV cache: allocation, sharing by tokens, eviction.

The hash of a full block covers its tokens and the hash of the block before, as in vLLM's automatic
prefix caching: equal prefixes share blocks. Each chain of hashes begins with a secret of this
process, so no client can aim at another's block. `ChildBlocks` finds blocks within which prompts
part.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
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
    """Count the tokens that two sequences of int32 begin with alike."""
    most = min(len(one), len(other)) // ID_BYTES
    if not most or one[:ID_BYTES] != other[:ID_BYTES]:
        return 0
    different = np.frombuffer(one, np.int32, most) != np.frombuffer(other, np.int32, most)
    first = int(different.argmax())
    return first if different[first] else most


class ChildBlocks:
    """Blocks with computed positions, by their parent (the hash of all before them) and scope.

    They are sorted by their tokens (int32 bytes): the block that begins like a prompt for longest
    is one of the two beside its place.
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
        """Likewise among the blocks all of whose tokens `tokens` begins with."""
        children = self._children.get((parent, scope), [])
        while place := bisect_right(children, tokens, key=_tokens):
            own, block = children[place - 1]
            count = common_tokens(own, tokens)
            if count * ID_BYTES == len(own):
                return block, count
            # What `tokens` go on from, this neighbour does, too.
            tokens = tokens[: count * ID_BYTES]
        return NO_MATCH

    def _discard(self, block: int, place: tuple[BlockHash, Scope], tokens: bytes) -> None:
        children = self._children[place]
        del children[bisect_left(children, (tokens, block))]
        if not children:
            del self._children[place]


_DIGEST_BYTES = 16


class KVCacheManager:
    """Reference-counted blocks with least-recently-used eviction of cached, unreferenced ones.

    Invariants: a block is either free (no references, in the eviction queue) or held. A hash names
    at most one block, and that block's content.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._secret = secrets.token_bytes(32)
        self._unsalted = self._root(b"")
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self.children = ChildBlocks()
        # Evicted from the left: blocks without content first, then the least recently used.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._least_free = num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def peak(self) -> int:
        """The most blocks held at once, since the start or the last `reset`."""
        return self.num_blocks - min(self._least_free, len(self._free))

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def hash_blocks(
        self, tokens: array[int], known: Sequence[BlockHash] = (), salt: bytes = b""
    ) -> list[BlockHash]:
        """The chained hash of every full block of `tokens`, of which `known` are the first."""
        hashes, size = list(known), self.block_size
        parent = self.parent_of(len(hashes), hashes, salt)
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            content = parent + tokens[start : start + size].tobytes()
            parent = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
            hashes.append(parent)
        return hashes

    def parent_of(self, index: int, hashes: Sequence[BlockHash], salt: bytes) -> BlockHash:
        """The hash of all before block number `index` of a sequence with these `hashes`."""
        if index:
            return hashes[index - 1]
        return self._root(salt) if salt else self._unsalted

    def _root(self, salt: bytes) -> BlockHash:
        """The parent of a first block. The salt is hashed by itself: else tokens could pass for a
        part of it."""
        return hashlib.blake2b(salt, key=self._secret, digest_size=_DIGEST_BYTES).digest()

    def match(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest cached prefix. They may be evicted until `touch`."""
        blocks: list[int] = []
        for block_hash in hashes:
            if (block := self._block_of.get(block_hash)) is None:
                break
            blocks.append(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one reference on each cached block, which keeps it until `release`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def num_held(self, blocks: Iterable[int]) -> int:
        """Count the cached blocks that are held. `touch` takes the others from the free ones."""
        return sum(self._references[block] > 0 for block in blocks)

    def held_by_others(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks of a sequence that another holder shares."""
        references = self._references
        # Who holds a block holds those before it, or rarely copies of them.
        return bisect_left(range(len(blocks)), True, key=lambda i: references[blocks[i]] < 2)

    def allocate(self, count: int) -> list[int] | None:
        """Blocks with one reference each and no content. None if too few are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self._references[block] = 1
        return blocks

    def register(self, block: int, block_hash: BlockHash) -> None:
        """`block` holds (or, in stream order, will hold) the content of `block_hash`.

        The first block with a content keeps its hash; a second copy gets none."""
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference on each block of a sequence. Its end is evicted first: its
        beginning is likelier to be shared."""
        self._least_free = min(self._least_free, len(self._free))
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None and block not in self.children:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> None:
        """Forget the content of every free block. Blocks in use stay shared."""
        self._least_free = len(self._free)
        for block in self._free:
            self._forget(block)

    def _forget(self, block: int) -> None:
        self.children.forget(block)
        if (block_hash := self._hash_of[block]) is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
