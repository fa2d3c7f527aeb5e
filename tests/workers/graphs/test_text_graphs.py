"""Which steps of texts are captured, and which one a step takes."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workers.device.timing import Stopwatch
from workers.graphs.text_graphs import StaticTexts, TextGraphs, text_graph_sizes, text_shape
from workers.stage.model_runner import step_of_texts

pytestmark = pytest.mark.usefixtures("pinned_anywhere")


def graphs_of(sizes: dict[str, list[int]], most_len: int) -> TextGraphs:
    """Graphs as far as it matters for which steps they are taken."""

    def graph(kind: str, size: int) -> Any:
        inputs = StaticTexts(text_shape(size, kind, most_len), (), torch.device("cpu"), types=False)
        return SimpleNamespace(inputs=inputs)

    return TextGraphs(**{kind: [graph(kind, size) for size in own] for kind, own in sizes.items()})


@pytest.mark.parametrize(
    ("lens", "size", "rows"),
    [
        ([512] * 32, 16_384, 64),
        ([128] * 128, 16_384, 512),
        ([32] * 512, 16_384, 512),
        ([12] * 1000, 12_288, 3072),
        ([3], 32, 8),
        ([9] * 8, 96, 24),
        ([512] + [30] * 400, 13_312, 416),
        ([4096] * 3, 12_288, 48),
        ([4097] + [32] * 300, 14_336, None),
        ([2] * 5000, None, None),
        ([8192] * 2, None, None),
    ],
)
def test_which_step_is_taken(lens: list[int], size: int | None, rows: int | None) -> None:
    graphs = graphs_of(text_graph_sizes(16_384, 8192), 8192)
    taken = graphs.select(step_of_texts(lens))
    if rows is None:
        assert taken is None
    else:
        assert taken is not None
        assert (taken.inputs.size, taken.inputs.rows) == (size, rows)


@pytest.mark.parametrize("most", [20, 256, 1000, 2048, 16_384])
@pytest.mark.parametrize("most_len", [128, 512, 8192])
def test_the_ladder(most: int, most_len: int) -> None:
    for kind, sizes in text_graph_sizes(most, most_len).items():
        assert sizes == sorted(set(sizes))
        assert not sizes or sizes[-1] == most
        assert kind != "short" or sizes
        for size in sizes:
            tokens, rows, longest = text_shape(size, kind, most_len)
            assert tokens == size <= rows * longest
            assert longest <= most_len
        for one, other in pairwise(sizes):
            assert other - one <= max(32, one // 8)


def test_steps_that_hide_their_launches_have_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stopwatch, "seconds", lambda _, run: run())

    def timed(size: int, seconds: float) -> Any:
        return SimpleNamespace(
            inputs=SimpleNamespace(size=size),
            replay=lambda: seconds,
            launch_seconds=lambda: 0.1 + size,
        )

    short = [timed(size, 0.7 * size) for size in (1, 5, 12, 14)]
    graphs = TextGraphs(short=short, long=[timed(3, 0.1)])
    graphs.drop_slow(Stopwatch(torch.device("cuda")))
    assert graphs.sizes() == {"short": [1, 5, 12], "medium": [], "long": [3]}
