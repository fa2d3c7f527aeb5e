"""The KV manager alone: allocation, sharing, eviction; and the block that begins like a prompt."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.schedulers.kv_cache import (
    NO_MATCH,
    BlockHash,
    ChildBlocks,
    HeldBlocks,
    KVCacheManager,
    common_tokens,
)
from tests.engine_core.configs import layout
from tests.engine_core.integrity import check_blocks, check_children
from tests.engine_core.simulated_model import ids


def tokens(*values: int) -> "array[int]":
    return array("i", values)


def test_hashes_cover_full_blocks_and_depend_on_all_before() -> None:
    kv = KVCacheManager(4, layout(2))
    hashes = kv.hash_blocks(tokens(1, 2, 3, 4, 5))
    assert len(hashes) == 2
    assert kv.hash_blocks(tokens(9, 2, 3, 4))[1] != hashes[1]
    assert not set(kv.hash_blocks(tokens(1, 2, 3, 4), salt=b"tenant")) & set(hashes)
    assert kv.hash_blocks(tokens(1, 2, 3, 4, 5, 6), hashes)[:2] == hashes
    assert KVCacheManager(4, layout(2)).hash_blocks(tokens(1, 2))[0] != hashes[0], (
        "each has its secret"
    )


def allocated(kv: KVCacheManager, count: int) -> list[int]:
    """Blocks of the only group, none if too few are free."""
    (own,) = held = kv.prefix([])
    kv.fill(held, count)
    return own.ids


def match(kv: KVCacheManager, hashes: list[BlockHash]) -> list[int]:
    """The blocks of the longest cached prefix, in the only group."""
    return kv.prefix(hashes[: kv.longest(hashes)])[0].ids


def registered(kv: KVCacheManager, *values: int) -> tuple[list[BlockHash], list[int]]:
    """The hashes of a sequence, and the blocks that hold it."""
    hashes = kv.hash_blocks(tokens(*values))
    blocks = allocated(kv, len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        kv.register(block, block_hash)
    return hashes, blocks


def test_cached_blocks_survive_release_until_memory_is_needed() -> None:
    kv = KVCacheManager(2, layout(2))
    hashes, blocks = registered(kv, 1, 2, 3, 4)
    kv.release(blocks)
    assert kv.num_free == 2
    assert match(kv, hashes) == blocks
    assert allocated(kv, 1) == [blocks[1]], "the end of a sequence is evicted first"
    assert match(kv, hashes) == blocks[:1]


def test_content_has_one_name() -> None:
    kv = KVCacheManager(2, layout(2))
    (block_hash,) = kv.hash_blocks(tokens(1, 2))
    first, second = allocated(kv, 2)
    kv.register(first, block_hash)
    kv.register(second, block_hash)
    assert match(kv, [block_hash]) == [first]
    kv.release([second])
    assert allocated(kv, 1) == [second], "an anonymous block is reused before any cached one"


def test_integrity_check_sees_a_double_release() -> None:
    kv = KVCacheManager(1, layout(2))
    blocks = allocated(kv, 1)
    kv.release(blocks)
    kv.release(blocks)
    with pytest.raises(AssertionError):
        check_blocks(kv)


@given(st.data())
def test_random_sequences_keep_every_invariant(data: st.DataObject) -> None:
    """Sequences over two tokens come and go; a match must always name its own content."""
    kv = KVCacheManager(6, layout(2))
    content: dict[int, list[int]] = {}
    held: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            kv.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            sequence = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=8))
            hashes = kv.hash_blocks(tokens(*sequence))
            shared = match(kv, hashes)
            for index, block in enumerate(shared):
                assert content[block] == sequence[: 2 * (index + 1)]
            kv.touch(shared)
            own = HeldBlocks(kv.groups[0], shared[:])
            if not kv.fill([own], len(hashes)):
                kv.release(shared)
            else:
                for index, block in enumerate(own.ids[len(shared) :], len(shared)):
                    content[block] = sequence[: 2 * (index + 1)]
                    kv.register(block, hashes[index])
                held.append(own.ids)
        check_blocks(kv)
    for blocks in held:
        kv.release(blocks)
    check_blocks(kv)
    assert kv.num_free == 6


def test_a_reset_forgets_what_nobody_holds() -> None:
    kv = KVCacheManager(4, layout(2))
    hashes, blocks = registered(kv, 1, 2, 3, 4, 5, 6)
    kv.release(blocks[1:])
    kv.reset()
    assert match(kv, hashes) == blocks[:1], "the first is held"
    kv.release(blocks[:1])
    assert match(kv, hashes) == blocks[:1], "and known until the next reset"
    kv.reset()
    assert match(kv, hashes) == []
    assert kv.num_free == 4
    check_blocks(kv)


def test_the_peak_is_what_was_held_at_once() -> None:
    kv = KVCacheManager(8, layout(2))
    assert kv.peak == 0
    first, second = allocated(kv, 3), allocated(kv, 2)
    kv.release(first)
    assert kv.peak == 5
    third = allocated(kv, 1)
    assert kv.peak == 5
    kv.reset()
    assert kv.peak == 3
    kv.release(second + third)
    assert kv.peak == 3


_tokens = st.lists(st.sampled_from([0, 1, 255, 256, 1 << 30]), max_size=6)


def common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@given(_tokens, _tokens)
def test_common_tokens(one: list[int], other: list[int]) -> None:
    assert common_tokens(ids(*one), ids(*other)) == common(one, other)


@given(st.lists(_tokens.filter(bool), max_size=12), _tokens, st.sets(st.integers(0, 11)))
def test_the_longest_match(children: list[list[int]], wanted: list[int], gone: set[int]) -> None:
    found = ChildBlocks()
    for block, tokens in enumerate(children):
        found.add(block, b"parent", None, ids(*tokens[:1]))
        found.add(block, b"parent", None, ids(*tokens))
        found.add(block, b"other parent", "scope", ids(*wanted))
    for block in gone:
        found.forget(block)
    check_children(found)
    left = {block: own for block, own in enumerate(children) if block not in gone}
    block, count = found.longest(b"parent", None, ids(*wanted))
    assert count == max((common(own, wanted) for own in left.values()), default=0)
    assert common(left[block], wanted) == count if count else (block, count) == NO_MATCH
    block, count = found.longest_whole(b"parent", None, ids(*wanted))
    whole = [own for own in left.values() if wanted[: len(own)] == own]
    assert count == max(map(len, whole), default=0)
    assert left[block] == wanted[:count] if count else (block, count) == NO_MATCH
    assert found.longest(b"parent", "scope", ids(*wanted)) == NO_MATCH
