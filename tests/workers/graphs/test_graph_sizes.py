"""Which sizes of steps are captured."""

import pytest

from workers.graphs.stage_graphs import decode_graph_sizes, grouped_graph_sizes, prompt_graph_sizes


@pytest.mark.parametrize("most", [1, 7, 64, 500, 512, 700])
def test_sizes_rise_to_the_largest(most: int) -> None:
    rows = decode_graph_sizes(most)
    assert rows == sorted(set(rows))
    assert rows[-1] == most
    assert rows[0] == 1
    tokens = prompt_graph_sizes(most)
    assert tokens == sorted(set(tokens))
    assert all(size <= most for size in tokens)


def test_shared_prefixes_have_few_sizes_up_to_the_largest() -> None:
    assert grouped_graph_sizes(decode_graph_sizes(300)) == [16, 32, 64, 128, 192, 256, 300]
    assert grouped_graph_sizes([]) == []
