"""The captured graphs in one line of the log."""

from types import SimpleNamespace
from typing import Any

import pytest

from workers.graphs.stage_graphs import StageGraphs, decode_graph_sizes, formatted_sizes, summary


def sized(size: int) -> Any:
    """A graph that has nothing but its size."""
    return SimpleNamespace(inputs=SimpleNamespace(size=size))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([7], "7"),
        ([1, 2], "1, 2"),
        (decode_graph_sizes(512), "1 to 4, 6, 8 to 16 by 4, 24 to 64 by 8, 80 to 512 by 16"),
        (decode_graph_sizes(48), "1 to 4, 6, 8 to 16 by 4, 24 to 48 by 8"),
        ([16, 32, 64, 80, 96, 112, 500], "16, 32, 64 to 112 by 16, 500"),
    ],
)
def test_sizes_in_words(sizes: list[int], words: str) -> None:
    assert formatted_sizes(sizes) == words


def test_what_was_kept_in_one_line() -> None:
    graphs = StageGraphs(
        decode=[sized(size) for size in (1, 2, 3, 8)],
        mixed=[sized(16)],
        piecewise=[sized(16), sized(32)],
    )
    kept = summary(graphs, [1, 2, 3, 6, 8], [16, 32])
    assert kept == (
        "decode of 1 to 3, 8 rows (4 of 5 kept); "
        "mixed of 16 tokens (1 of 2 kept); "
        "piecewise of 16, 32 tokens (2 of 2 kept)"
    )
    graphs.mixed = []
    assert "mixed" not in summary(graphs, [1, 2, 3, 6, 8], [16, 32])
