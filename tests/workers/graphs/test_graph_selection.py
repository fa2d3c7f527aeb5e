"""Which steps are captured, and which of those are kept. Capturing itself needs a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.step_maker import int32
from workers.contract.messages import StepInput
from workers.graphs.graph_selection import (
    StageGraphs,
    decode_graph_sizes,
    drop_slow_graphs,
    prompt_graph_sizes,
)
from workers.graphs.static_inputs import StaticRows
from workers.graphs.summary import spelled, summary
from workers.step.rows import StepRows


@pytest.mark.parametrize("most", [1, 7, 64, 500, 512, 700])
def test_ladders_rise_to_the_most(most: int) -> None:
    rows = decode_graph_sizes(most)
    assert rows == sorted(set(rows))
    assert rows[-1] == most
    assert rows[0] == 1
    tokens = prompt_graph_sizes(most)
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
    assert drop_slow_graphs(sizes, taken.__getitem__) == kept


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
    assert spelled(sizes) == words


def test_what_was_kept_in_one_line() -> None:
    graphs = StageGraphs(
        decodes=[captured(size) for size in (1, 2, 3, 8)],
        whole=[captured(16)],
        pieces=[captured(16), captured(32)],
    )
    kept = summary(graphs, [1, 2, 3, 6, 8], [16, 32])
    assert kept == (
        "decode steps of 1 to 3, 8 rows (4 of 5 kept); "
        "steps with prompts, whole, of 16 tokens (1 of 2 kept); "
        "steps with prompts, without attention, of 16, 32 tokens (2 of 2 kept)"
    )
    graphs.whole = []
    assert "whole" not in summary(graphs, [1, 2, 3, 6, 8], [16, 32])


def captured(size: int, places: StaticRows | None = None) -> Any:
    """A graph as far as it matters for which steps it is taken."""

    def hold(rows: StepRows) -> bool:
        return rows.total <= size and (places is None or places.hold(rows))

    return SimpleNamespace(inputs=SimpleNamespace(size=size, hold=hold))


@pytest.mark.parametrize(
    ("contexts", "counts", "kind"),
    [
        ([600] * 20, [1] * 20, "decodes"),
        ([600] * 19 + [5000], [1] * 20, "pieces"),
        ([600] * 15 + [30000], [1] * 16, "decodes"),
        ([5000] * 20, [1] * 20, "decodes"),
        ([600] * 5 + [40], [1] * 5 + [30], "whole"),
        ([5000] * 5 + [40], [1] * 5 + [30], "pieces"),
        ([64] * 70, [1] * 70, None),
    ],
)
def test_which_graph_a_step_takes(contexts: list[int], counts: list[int], kind: str | None) -> None:
    graphs = StageGraphs(
        decodes=[captured(8), captured(64)],
        whole=[captured(64, StaticRows(32, 8, 1 << 15))],
        pieces=[captured(16), captured(64)],
    )
    starts = [context - count for context, count in zip(contexts, counts, strict=True)]
    rows = StepRows.of(
        StepInput(
            0,
            tokens=bytes(4 * sum(counts)),
            query_lens=int32(counts),
            slots=int32(list(range(len(counts)))),
            starts=int32(starts),
        )
    )
    assert graphs.fitting(rows) is (getattr(graphs, kind)[-1] if kind else None)
