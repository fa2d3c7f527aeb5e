"""Which steps of texts are captured, and which one a step takes."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workers.device.timing import Stopwatch
from workers.device.tuning import TEXT_GRAPH_MEAN_LENS
from workers.graphs.text_graphs import StaticTexts, TextGraphs, text_graph_sizes
from workers.stage.model_runner import step_of_texts

pytestmark = pytest.mark.usefixtures("pinned_anywhere")


def graphs_of(sizes: dict[str, list[int]]) -> TextGraphs:
    """Graphs as far as it matters for which steps they are taken."""

    def graph(mean: int, size: int) -> Any:
        inputs = StaticTexts(size, size // mean, (), torch.device("cpu"), types=False)
        return SimpleNamespace(inputs=inputs)

    graphs = TextGraphs()
    graphs.capture(sizes, {f"of_{mean}": partial(graph, mean) for mean in TEXT_GRAPH_MEAN_LENS})
    return graphs


@pytest.mark.parametrize(
    ("lens", "size", "rows"),
    [
        ([512] * 32, 16_384, 64),
        ([128] * 128, 16_384, 512),
        ([12] * 1000, 12_288, 3072),
        ([3], 32, 8),
        ([9] * 8, 96, 24),
        ([512] + [30] * 400, 13_312, 416),
        ([8192] * 2, 16_384, 16),
        ([2] * 5000, None, None),
    ],
)
def test_which_step_is_taken(lens: list[int], size: int | None, rows: int | None) -> None:
    graphs = graphs_of(text_graph_sizes(16_384, 8192))
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
        mean = int(kind.removeprefix("of_"))
        assert sizes == sorted(set(sizes))
        assert not sizes or sizes[-1] == most
        assert mean > 4 or sizes
        for size in sizes:
            assert (
                StaticTexts(
                    size, size // mean, (), torch.device("cpu"), types=False
                ).step.query_lens.mean()
                >= mean
            )
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

    graphs = TextGraphs()
    vars(graphs)["of_4"] = [timed(size, 0.7 * size) for size in (1, 5, 12, 14)]
    vars(graphs)["of_256"] = [timed(3, 0.1)]
    graphs.drop_slow(Stopwatch(torch.device("cuda")))
    kept = {kind: sizes for kind, sizes in graphs.sizes().items() if sizes}
    assert kept == {"of_4": [1, 5, 12], "of_256": [3]}
