"""Allocates, shares and releases the blocks of the paged KV cache; finds blocks by their tokens.

A block holds the keys and values of `block_size` consecutive tokens of one sequence. A full block
is identified by the hash of its tokens chained to the hash of the block before it (as in vLLM's
automatic prefix caching), so equal prefixes share blocks. Each chain begins with a secret of this
process: no client can aim at another's block. Where prompts part within a block, `ChildBlocks`
finds it.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine_core.schedulers.kv_cache.child_blocks import BlockHash, ChildBlocks

_DIGEST_BYTES = 16


class KVCacheManager:
    """Reference-counted blocks with least-recently-used eviction of cached, unreferenced ones.

    Invariants (see `check_integrity`): a block is either free (no references, in the eviction
    queue) or held; a hash names at most one block, and that block's content.
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
        """Blocks that could be allocated now, cached content included."""
        return len(self._free)

    @property
    def peak(self) -> int:
        """The most blocks that were held at once, since the start or the last `reset`."""
        return self.num_blocks - min(self._least_free, len(self._free))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def hash_blocks(
        self, tokens: array[int], known: Sequence[BlockHash] = (), salt: bytes = b""
    ) -> list[BlockHash]:
        """The chained hash of every full block of `tokens`, of which `known` are the first.

        Sequences of different `salt` have no hash in common.
        """
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
        """What comes before the first block. The salt is hashed by itself: else tokens could pass
        for a part of it."""
        return hashlib.blake2b(salt, key=self._secret, digest_size=_DIGEST_BYTES).digest()

    def match(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest cached prefix. They may be evicted until `touch`."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one reference on each cached block: none of them is evicted until `release`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def num_held(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks something holds: `touch` takes the others only from those
        that are free."""
        return sum(self._references[block] > 0 for block in blocks)

    def held_by_others(self, blocks: Sequence[int]) -> int:
        """How many of the first `blocks` of a sequence, which holds them, something else holds,
        too: the last of these is one that it does."""
        references = self._references
        # Who holds a block holds those before it, or rarely copies of them.
        return bisect_left(range(len(blocks)), True, key=lambda i: references[blocks[i]] < 2)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each and no content; None if too few are free."""
        if count > len(self._free):
            return None
        return [self._pop_free() for _ in range(count)]

    def register(self, block: int, block_hash: BlockHash) -> None:
        """`block` holds (or, in stream order, will hold) the content of `block_hash`.

        The first block with a content keeps its hash; a second copy gets none.
        """
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference on each block of a sequence; blocks without any become free.

        The end of the sequence is evicted first: its beginning is likelier to be shared.
        """
        self._least_free = min(self._least_free, len(self._free))
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None and block not in self.children:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> None:
        """Forget the content of every free block; blocks in use stay shared."""
        self._least_free = len(self._free)
        for block in self._free:
            self._forget(block)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken. For tests: reads every block."""
        for block, references in enumerate(self._references):
            assert references >= 0, f"block {block} has {references} references"
            assert (references == 0) == (block in self._free), f"block {block} is lost"
        for block_hash, block in self._block_of.items():
            assert self._hash_of[block] == block_hash, f"block {block} is registered twice"
        self.children.check_integrity()

    def _pop_free(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        self.children.forget(block)
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None
