"""Which captured graphs are kept. Capturing itself needs a GPU."""

import pytest

from workers.graphs.stage_graphs import drop_slow_graphs


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
def test_a_graph_that_a_larger_one_clearly_outruns_is_dropped(
    taken: list[float], kept: list[int]
) -> None:
    sizes = list(range(len(taken)))
    assert drop_slow_graphs(sizes, taken.__getitem__) == kept
