"""Which steps are captured, and which of those are kept. Capturing itself needs a GPU."""

import pytest

from workers.graphs.capture import row_ladder, token_ladder, worth_having


@pytest.mark.parametrize("most", [1, 7, 64, 500, 512, 700])
def test_ladders_rise_to_the_most(most: int) -> None:
    rows = row_ladder(most)
    assert rows == sorted(set(rows))
    assert rows[-1] == most
    assert rows[0] == 1
    tokens = token_ladder(most)
    assert tokens == sorted(set(tokens))
    assert all(size <= most for size in tokens)


@pytest.mark.parametrize(
    ("taken", "kept"),
    [
        ([1.0, 2.0, 3.0], [0, 1, 2]),
        ([1.0, 3.0, 3.0, 4.0], [0, 1, 2, 3]),
        ([2.0, 15.0, 12.0, 14.0, 13.0], [0, 2, 4]),
        ([5.0, 5.0, 1.0], [2]),
        ([5.0, 4.9, 4.8, 4.7], [1, 2, 3]),
        ([], []),
    ],
)
def test_what_a_larger_step_clearly_outruns_is_not_worth_having(
    taken: list[float], kept: list[int]
) -> None:
    sizes = list(range(len(taken)))
    assert worth_having(sizes, taken.__getitem__) == kept
