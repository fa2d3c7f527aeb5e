"""What holds of a KV cache between any two calls."""

from engine_core.schedulers.kv_cache import ChildBlocks, KVCacheManager


def check_blocks(kv: KVCacheManager) -> None:
    """Raise AssertionError if an invariant is broken: reads every block."""
    beside = [other for others in kv._companions.values() for other in others]
    assert len(set(beside)) == len(beside), "a block is the companion of two"
    for block, references in enumerate(kv._references):
        assert references >= 0, f"block {block} has {references} references"
        places = (references > 0) + (block in kv._free) + (block in beside)
        assert places == 1, f"block {block} is in {places} places"
    assert kv.num_free == sum(1 + len(kv._companions.get(block, ())) for block in kv._free)
    for group in kv.groups:
        for block_hash, block in group.block_of.items():
            assert kv._hash_of[block] == block_hash, f"block {block} is registered twice"
            assert kv._group_of[block] is group, f"block {block} is another group's"
        check_children(group.children)


def check_children(children: ChildBlocks) -> None:
    """Raise AssertionError unless every place of a block has it, and nothing else is there."""
    listed = {(place, *each) for place, own in children._children.items() for each in own}
    kept = {
        (place, tokens, block)
        for block, places in children.places.items()
        for place, tokens in places.items()
    }
    assert listed == kept, "a block is not where its tokens are"
    assert all(own == sorted(own) for own in children._children.values()), "children are not sorted"
