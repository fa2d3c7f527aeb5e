"""Keys take turns; items of one key keep their order."""

from hypothesis import given
from hypothesis import strategies as st

from engine_core.tokenization.fair_turns import FairTurns


@given(keys=st.lists(st.integers(0, 3), max_size=30))
def test_no_key_is_served_twice_while_another_waits(keys: list[int]) -> None:
    turns: FairTurns[tuple[int, int]] = FairTurns()
    for number, key in enumerate(keys):
        turns.put((key, number), key)
    taken: list[tuple[int, int]] = []
    while turns:
        taken.append(turns.take())
    for key in set(keys):
        own = [number for other, number in taken if other == key]
        assert own == [number for number, other in enumerate(keys) if other == key]
    for at, (key, _) in enumerate(taken[1:], 1):
        if taken[at - 1][0] == key:
            assert {other for other, _ in taken[at:]} == {key}, "the others were waiting"
