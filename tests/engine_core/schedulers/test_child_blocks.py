"""The block that begins like a prompt for longest, against a look at all of them."""

from hypothesis import given
from hypothesis import strategies as st

from engine_core.schedulers.kv_cache import NO_MATCH, ChildBlocks, common_tokens
from tests.engine_core.integrity import check_children
from tests.engine_core.simulated_model import ids

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
