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
    is one of the two beside its place. `places` has those of each block, with its tokens there.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[BlockHash, Scope], list[tuple[bytes, int]]] = {}
        self.places: dict[int, dict[tuple[BlockHash, Scope], bytes]] = {}

    def add(self, block: int, parent: BlockHash, scope: Scope, tokens: bytes) -> None:
        """`block` holds these tokens behind `parent`: more than when it was added before."""
        place, places = (parent, scope), self.places.setdefault(block, {})
        if (fewer := places.get(place)) is not None:
            self._discard(block, place, fewer)
        places[place] = tokens
        insort(self._children.setdefault(place, []), (tokens, block))

    def forget(self, block: int) -> None:
        """`block` is about to hold something else."""
        for place, tokens in self.places.pop(block, {}).items():
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
    """The known content of a group's blocks: by hash if full, else as `children`.

    A hash names at most one block, and that block's content.

    tables, entry  how many block tables, and where the first begins among a slot's
    """

    def __init__(self, group: CacheGroup, layout: CacheLayout) -> None:
        self.windowed, self.seen, self.most = group.windowed, group.seen, group.most
        self.tables, self.entry = group.num_tables, group.first_table * layout.max_blocks
        self.block_of: dict[BlockHash, int] = {}
        self.children = ChildBlocks()
        self._reach, self._size = group.reach, layout.block_size

    def first_seen(self, position: int) -> int:
        """The first block that `position` and those behind it see."""
        return max(0, (position - self._reach) // self._size)

    def longest(self, hashes: Sequence[BlockHash], count: int) -> int:
        """The most of the first `count` blocks behind which a sequence can go on: those that its
        next position sees are cached."""
        block_of, at = self.block_of, count
        if not (first := self.first_seen(count * self._size)):
            for at in range(count):  # all are seen
                if hashes[at] not in block_of:
                    return at
            return count
        while at > first:
            at -= 1
            if hashes[at] not in block_of:
                count, first = at, self.first_seen(at * self._size)
        return count


@dataclass(slots=True)
class HeldBlocks:
    """The blocks of a sequence in one group.

    ids    by index; those before `first` are out of the window, and not held
    sent   how many indices the workers know
    """

    group: CachedGroup
    ids: list[int]
    first: int = 0
    sent: int = 0

    @property
    def held(self) -> list[int]:
        return self.ids[self.first :] if self.first else self.ids


UNHELD: Final = -1  # in place of a block


class KVCacheManager:
    """Reference-counted blocks with least-recently-used eviction of cached, unreferenced ones.

    Invariants: a block is either free (no references, in the eviction queue), held, or a companion
    of such a block.
    """

    def __init__(self, num_blocks: int, layout: CacheLayout) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.layout, self.block_size = layout, layout.block_size
        self.groups = [CachedGroup(group, layout) for group in layout.groups]
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
            found.append(HeldBlocks(group, [UNHELD] * first + seen, first, first))
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

    def lacking(self, held: Sequence[HeldBlocks], count: int) -> int:
        """Blocks that a sequence will still take until its tables have `count` entries."""
        return sum(
            [
                own.group.tables * max(0, min(count, own.group.seen) - len(own.ids) + own.first)
                for own in held
            ]
        )

    def held_by_others(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks of a sequence that another holder shares."""
        references = self._references
        # Who holds a block holds those before it, or rarely copies of them.
        return bisect_left(range(len(blocks)), True, key=lambda i: references[blocks[i]] < 2)

    def missing(self, held: Sequence[HeldBlocks], count: int) -> int:
        """How many blocks `fill` takes."""
        total = 0
        for own in held:
            more = min(count, own.first + own.group.most) - len(own.ids)
            if more > 0:
                total += more * own.group.tables
        return total

    def fill(self, held: Sequence[HeldBlocks], count: int) -> bool:
        """Hold a sequence's first `count` blocks, in groups with a window no more than a step and
        the window before it need. False, and none more, if too few are free."""
        if self.missing(held, count) > self.num_free:
            return False
        for own in held:
            group = own.group
            for _ in range(len(own.ids), min(count, own.first + group.most)):
                own.ids.append(self._take(group))
        return True

    def extend(self, held: Sequence[HeldBlocks], index: int, position: int) -> bool:
        """Hold one more block of a sequence, number `index`, in each group that lacks it, and trim
        it for its next `position`. False, and none more, if too few are free."""
        needed = 0
        for own in held:
            group = own.group
            if group.windowed:
                self._trim(own, position)
            if len(own.ids) == index:
                needed += group.tables
        if needed > self.num_free:
            return False
        for own in held:
            if len(own.ids) == index:
                own.ids.append(self._take(own.group))
        return True

    def _take(self, group: CachedGroup) -> int:
        """Hold a free block of a group, with one reference and no content."""
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        if group.tables > 1 or self._companions:
            self._accompany(block, group.tables - 1)
        self._group_of[block] = group
        self._references[block] = 1
        self.num_free -= group.tables
        return block

    def _accompany(self, block: int, count: int) -> None:
        """Give a block so many companions. Others that it had, or that come with them, are free."""
        companions = self._companions.pop(block, [])
        while len(companions) < count:
            other, _ = self._free.popitem(last=False)
            self._forget(other)
            companions += [other, *self._companions.pop(other, ())]
        for surplus in companions[count:]:
            self._free[surplus] = None
            self._free.move_to_end(surplus, last=False)
        if count:
            self._companions[block] = companions[:count]

    def trim(self, held: Sequence[HeldBlocks], position: int) -> None:
        """Give back what `position` of a sequence, and those behind it, do not see. What is cached
        may be found until it is evicted."""
        for own in held:
            if own.group.windowed:
                self._trim(own, position)

    def _trim(self, own: HeldBlocks, position: int) -> None:
        first = own.group.first_seen(position)
        if first > own.first:
            self.release(own.ids[own.first : first])
            own.first = first

    def is_behind(self, held: Sequence[HeldBlocks], position: int) -> bool:
        """Whether a sequence has given back all before `position` in a group."""
        return any(own.first * self.block_size >= position for own in held)

    def room(self, held: Sequence[HeldBlocks]) -> int:
        """Positions before this one have blocks in every group, or are out of its window."""
        return min([len(own.ids) for own in held]) * self.block_size

    def table_updates(self, slot: int, held: Sequence[HeldBlocks]) -> list[int]:
        """Entries of a slot's block tables that the workers do not know yet:
        `DecodeStep.block_updates`, flat."""
        updates: list[int] = []
        for own in held:
            ids, entry = own.ids, own.group.entry
            for index in range(own.sent, len(ids)):
                block = ids[index]
                updates += (slot, entry + index, block)
                if block in self._companions:
                    for table, other in enumerate(self._companions[block], 1):
                        updates += (slot, entry + index + table * self.layout.max_blocks, other)
            own.sent = len(ids)
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
                if self._hash_of[block] is None and block not in group.children.places:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> None:
        """Forget the content of every free block. Blocks in use stay shared."""
        self._least_free = self.num_free
        for block in self._free:
            self._forget(block)

    def _forget(self, block: int) -> None:
        group = self._group_of[block]
        if block in group.children.places:
            group.children.forget(block)
        if (block_hash := self._hash_of[block]) is not None:
            del group.block_of[block_hash]
            self._hash_of[block] = None
