"""The blocks of the paged KV cache: allocation, sharing by tokens, eviction.

The hash of a full block covers its tokens and the hash of the block before, as in vLLM's automatic
prefix caching: equal prefixes share blocks. Each chain of hashes begins with a secret of this
process, so no client can aim at another's block. `ChildBlocks` finds blocks within which prompts
part.

A model has one or more groups of layers (`workers/contract/cache_layout.py`). Of one pool, each
group has blocks of its own for a sequence. Where it has several block tables, a block stands for
one in each of them: for itself and its companions, which are taken and given back with it.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from operator import itemgetter
from typing import Final

import numpy as np

from workers.contract.cache_layout import CacheGroup, CacheLayout

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


class CachedGroup:
    """What is known of the content of a group's blocks: by hash if full, else as `children`.

    A hash names at most one block, and that block's content.
    """

    def __init__(self, group: CacheGroup, block_size: int) -> None:
        self.windowed, self.seen, self.most = group.windowed, group.seen, group.most
        self.tables, self.first_table = group.num_tables, group.first_table
        self.block_of: dict[BlockHash, int] = {}
        self.children = ChildBlocks()
        self._group, self._block_size = group, block_size

    def first_seen(self, position: int) -> int:
        """The first block that `position` and those behind it see."""
        return self._group.first_seen(position, self._block_size)

    def longest(self, hashes: Sequence[BlockHash], count: int) -> int:
        """The most of the first `count` blocks behind which a sequence can go on: those that its
        next position sees are cached."""
        block_of, at = self.block_of, count
        if not (first := self.first_seen(count * self._block_size)):
            # All are seen, so the first miss ends it.
            return next((at for at in range(count) if hashes[at] not in block_of), count)
        while at > first:
            at -= 1
            if hashes[at] not in block_of:
                count, first = at, self.first_seen(at * self._block_size)
        return count


@dataclass(slots=True)
class HeldBlocks:
    """The blocks of a sequence in one group.

    ids    by index; those before `first` are out of the window, and not held
    told   how many indices the workers know
    """

    ids: list[int]
    first: int = 0
    told: int = 0

    @property
    def held(self) -> list[int]:
        return self.ids[self.first :]


UNHELD: Final = -1  # in place of a block


class KVCacheManager:
    """Reference-counted blocks with least-recently-used eviction of cached, unreferenced ones.

    Invariants: a block is either free (no references, in the eviction queue), held, or a companion
    of such a block.
    """

    def __init__(self, num_blocks: int, layout: CacheLayout) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.layout, self.block_size = layout, layout.block_size
        self.groups = [CachedGroup(group, layout.block_size) for group in layout.groups]
        self._secret = secrets.token_bytes(32)
        self._unsalted = self._root(b"")
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._group_of = [self.groups[0]] * num_blocks
        self._companions: dict[int, list[int]] = {}
        # Evicted from the left: blocks without content first, then the least recently used.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._least_free = num_blocks

    @property
    def peak(self) -> int:
        """The most blocks held at once, since the start or the last `reset`."""
        return self.num_blocks - min(self._least_free, self.num_free)

    def blocks_for(self, num_tokens: int) -> int:
        """Entries of a block table."""
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

    def longest(self, hashes: Sequence[BlockHash]) -> int:
        """Whole blocks of the longest prefix that is cached in each group, as far as a position
        behind it sees."""
        count, agreeing = len(hashes), 0
        for group in cycle(self.groups):
            found = group.longest(hashes, count)
            agreeing = agreeing + 1 if found == count else 1
            count = found
            if agreeing == len(self.groups):
                break
        return count

    def prefix(self, hashes: Sequence[BlockHash]) -> list[HeldBlocks]:
        """The cached blocks with these hashes, in each group those that a position behind them
        sees. They may be evicted until `touch`."""
        found: list[HeldBlocks] = []
        for group in self.groups:
            first = group.first_seen(len(hashes) * self.block_size)
            seen = [group.block_of[block_hash] for block_hash in hashes[first:]]
            found.append(HeldBlocks([UNHELD] * first + seen, first, first))
        return found

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one reference on each cached block, which keeps it until `release`."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
                self.num_free -= self._group_of[block].tables
            self._references[block] += 1

    def num_held(self, blocks: Iterable[int]) -> int:
        """Count the cached blocks that are held. `touch` takes the others from the free ones."""
        return self.count([block for block in blocks if self._references[block]])

    def count(self, blocks: Iterable[int]) -> int:
        """Count blocks, with their companions."""
        return sum([self._group_of[block].tables for block in blocks])

    def total(self, counts: Sequence[int]) -> int:
        """Blocks with their companions, of a count for each group."""
        return sum([group.tables * count for group, count in zip(self.groups, counts, strict=True)])

    def lacking(self, held: Sequence[HeldBlocks], count: int) -> int:
        """Blocks that a sequence will still take until its tables have `count` entries."""
        return self.total(
            [
                max(0, min(count, group.seen) - len(own.ids) + own.first)
                for group, own in zip(self.groups, held, strict=True)
            ]
        )

    def held_by_others(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks of a sequence that another holder shares."""
        references = self._references
        # Who holds a block holds those before it, or rarely copies of them.
        return bisect_left(range(len(blocks)), True, key=lambda i: references[blocks[i]] < 2)

    def allocate(self, counts: Sequence[int]) -> list[list[int]] | None:
        """So many blocks of each group, with one reference each and no content. None if too few
        are free."""
        needed = self.total(counts)
        if needed > self.num_free:
            return None
        self.num_free -= needed
        return [
            [self._take(group) for _ in range(count)]
            for group, count in zip(self.groups, counts, strict=True)
        ]

    def _take(self, group: CachedGroup) -> int:
        block, companions = self._evict()
        while len(companions) < group.tables - 1:
            other, others = self._evict()
            companions += [other, *others]
        for surplus in companions[group.tables - 1 :]:
            self._free[surplus] = None
            self._free.move_to_end(surplus, last=False)
        if group.tables > 1:
            self._companions[block] = companions[: group.tables - 1]
        self._group_of[block] = group
        self._references[block] = 1
        return block

    def _evict(self) -> tuple[int, list[int]]:
        """The free block that is used next, and its companions. What they hold is forgotten."""
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        return block, self._companions.pop(block, [])

    def trim(self, held: Sequence[HeldBlocks], position: int) -> None:
        """Give back what `position` of a sequence, and those behind it, do not see. What is cached
        may be found until it is evicted."""
        for group, own in zip(self.groups, held, strict=True):
            first = group.first_seen(position)
            if first > own.first:
                self.release(own.ids[own.first : first])
                own.first = first

    def is_behind(self, held: Sequence[HeldBlocks], position: int) -> bool:
        """Whether a sequence has given back what `position` sees."""
        groups = zip(self.groups, held, strict=True)
        return any(own.first > group.first_seen(position) for group, own in groups)

    def extend(self, held: Sequence[HeldBlocks], position: int) -> bool:
        """Hold blocks of a sequence up to `position`. False, and none more, if too few are free."""
        wanted = position // self.block_size + 1
        fresh = self.allocate([max(0, wanted - len(own.ids)) for own in held])
        if fresh is None:
            return False
        for own, blocks in zip(held, fresh, strict=True):
            own.ids += blocks
        return True

    def room(self, held: Sequence[HeldBlocks]) -> int:
        """The positions before this one are in blocks of every group, as far as they are seen."""
        return min([len(own.ids) for own in held]) * self.block_size

    def table_updates(self, slot: int, held: Sequence[HeldBlocks]) -> list[int]:
        """Entries of a slot's block tables that the workers do not know yet:
        `DecodeStep.block_updates`, flat."""
        updates: list[int] = []
        for group, own in zip(self.groups, held, strict=True):
            start = group.first_table * self.layout.max_blocks
            for index in range(own.told, len(own.ids)):
                entry = start + index
                for block in self._with_companions(own.ids[index]):
                    updates += (slot, entry, block)
                    entry += self.layout.max_blocks
            own.told = len(own.ids)
        return updates

    def copy_of(self, source: int, target: int) -> Iterator[int]:
        """The copy of a block into another of its group: `DecodeStep.block_copies`, flat."""
        both = map(self._with_companions, (source, target))
        for pair in zip(*both, strict=True):
            yield from pair

    def _with_companions(self, block: int) -> list[int]:
        return [block, *self._companions.get(block, ())]

    def register(self, block: int, block_hash: BlockHash) -> None:
        """`block` holds (or, in stream order, will hold) the content of `block_hash`.

        The first block of a group with a content keeps its hash; a second copy gets none."""
        block_of = self._group_of[block].block_of
        if block_hash not in block_of and self._hash_of[block] is None:
            block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference on each block of a sequence. Its end is evicted first: its
        beginning is likelier to be shared."""
        self._least_free = min(self._least_free, self.num_free)
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                group = self._group_of[block]
                self.num_free += group.tables
                self._free[block] = None
                if self._hash_of[block] is None and block not in group.children:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> None:
        """Forget the content of every free block. Blocks in use stay shared."""
        self._least_free = self.num_free
        for block in self._free:
            self._forget(block)

    def _forget(self, block: int) -> None:
        group = self._group_of[block]
        group.children.forget(block)
        if (block_hash := self._hash_of[block]) is not None:
            del group.block_of[block_hash]
            self._hash_of[block] = None
