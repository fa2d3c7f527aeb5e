"""Which graph a step takes."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers.step_maker import int32
from workers.contract.messages import DecodeStep
from workers.graphs.stage_graphs import StageGraphs
from workers.graphs.static_inputs import StaticRows
from workers.step.rows import StepRows


def captured(size: int, static_rows: StaticRows | None = None) -> Any:
    """A graph as far as it matters for which steps it is taken."""

    def has_room_for(rows: StepRows) -> bool:
        return rows.total <= size and (static_rows is None or static_rows.has_room_for(rows))

    return SimpleNamespace(inputs=SimpleNamespace(size=size, has_room_for=has_room_for))


@pytest.mark.parametrize(
    ("contexts", "counts", "kind"),
    [
        ([600] * 20, [1] * 20, "decode"),
        ([600] * 19 + [5000], [1] * 20, "piecewise"),
        ([600] * 15 + [30000], [1] * 16, "decode"),
        ([5000] * 20, [1] * 20, "decode"),
        ([600] * 5 + [40], [1] * 5 + [30], "mixed"),
        ([5000] * 5 + [40], [1] * 5 + [30], "piecewise"),
        ([64] * 70, [1] * 70, None),
    ],
)
def test_which_graph_a_step_takes(contexts: list[int], counts: list[int], kind: str | None) -> None:
    graphs = StageGraphs(
        decode=[captured(8), captured(64)],
        mixed=[captured(64, StaticRows(32, 8, 1 << 15))],
        piecewise=[captured(16), captured(64)],
    )
    starts = [context - count for context, count in zip(contexts, counts, strict=True)]
    rows = StepRows.of(
        DecodeStep(
            step=0,
            tokens=bytes(4 * sum(counts)),
            query_lens=int32(counts),
            slots=int32(list(range(len(counts)))),
            sample=bytes(len(counts)),
            starts=int32(starts),
        )
    )
    assert graphs.select(rows) is (getattr(graphs, kind)[-1] if kind else None)
