"""What graphs capture, which are kept, and which one a step takes. Capturing itself needs a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from workers.attention.base import LayerCache
from workers.device.timing import Stopwatch
from workers.graphs.captured_step import without_slow
from workers.graphs.stage_graphs import (
    AttentionBuffers,
    PartialGraph,
    StageGraphs,
    decode_graph_sizes,
    grouped_graph_sizes,
    prompt_graph_sizes,
)
from workers.graphs.static_inputs import StaticRows
from workers.step.rows import StepRows

LAYERS = 3
RUN = [
    ["resolve", "embed", "qkv 0", "rotate 0"],
    ["after 0", "qkv 1", "rotate 1"],
    ["after 1", "qkv 2", "rotate 2"],
]


class Recorded:
    """A stage, its inputs and a pool that record their calls in order."""

    capturing = nullcontext

    def __init__(self, *, with_rows: bool) -> None:
        self.calls: list[str] = []
        self.inputs = SimpleNamespace(
            size=2,
            rows=object() if with_rows else None,
            resolve_tokens=lambda: self.calls.append("resolve"),
            step="tokens",
            as_step_of_rows=lambda: "rows",
        )
        self.model = SimpleNamespace(
            embed=lambda step: self.record("embed"), layers=[self.layer(i) for i in range(LAYERS)]
        )
        parts = SimpleNamespace(
            counts=(1, 0),
            own_cache=LayerCache(*(torch.zeros(1, 1).to(torch.float8_e4m3fn) for _ in range(2))),
        )
        self.attention = SimpleNamespace(over=self.paged, layers=[parts] * LAYERS)

    def record(self, what: str) -> torch.Tensor:
        self.calls.append(what)
        return torch.tensor(float(len(self.calls)))

    def layer(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(
            qkv=lambda hidden: self.record(f"qkv {number}"),
            after_attention=lambda hidden, attended: self.record(f"after {number}"),
        )

    def paged(self, step: str) -> SimpleNamespace:
        assert step == ("rows" if self.inputs.rows else "tokens")
        return SimpleNamespace(
            rotate_and_cache=lambda layer, qkv, out: self.record(f"rotate {layer}"),
            attend=lambda layer, qkv, out: self.record(f"attend {layer}"),
        )

    def begin(self) -> SimpleNamespace:
        self.calls.append("begin")
        return SimpleNamespace(capture_end=lambda: self.calls.append("end"))


@pytest.mark.parametrize("with_rows", [False, True], ids=["piecewise", "mixed"])
def test_everything_up_to_the_last_attention_is_captured(with_rows: bool) -> None:
    stage: Any = Recorded(with_rows=with_rows)
    buffers = AttentionBuffers.of(stage.attention.layers, 4, torch.bfloat16)
    assert buffers.qkv.dtype == buffers.attended.dtype == torch.bfloat16, "not the cache's"
    graph = PartialGraph(stage.inputs, stage.model, stage.attention, None)
    captured = graph.capture(stage, buffers)
    whole = [*RUN[0], "attend 0", *RUN[1], "attend 1", *RUN[2]]
    pieces = [whole] if with_rows else RUN
    once = [call for piece in pieces for call in piece]
    assert stage.calls == once + [call for piece in pieces for call in ("begin", *piece, "end")]
    assert len(captured.pieces) == len(pieces)
    # What the last layer's attention starts from, of the run that was captured.
    assert captured.hidden == stage.calls.index("after 1", len(stage.calls) // 2) + 1


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
    assert without_slow([*range(len(taken))], taken.__getitem__) == kept


def graph(size: int, static_rows: StaticRows | None = None) -> Any:
    """A graph as far as it matters for which steps it is taken, and how it is called."""

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
        decode=[graph(8), graph(64)],
        mixed=[graph(64, StaticRows(32, 8, 1 << 15))],
        piecewise=[graph(16), graph(64)],
    )
    lens = np.array(counts, np.int32)
    slots = np.arange(len(counts), dtype=np.int32)
    rows = StepRows.over(slots, lens, np.array(contexts, np.int32) - lens)
    assert graphs.select(rows) is (getattr(graphs, kind)[-1] if kind else None)


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


def test_each_kind_loses_the_graphs_that_a_larger_one_outruns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Stopwatch, "seconds", lambda _, run: run())

    def timed(size: int, seconds: float) -> Any:
        return SimpleNamespace(inputs=SimpleNamespace(size=size), replay=lambda: seconds)

    graphs = StageGraphs(
        decode=[timed(1, 2.0), timed(2, 1.0)], piecewise=[timed(16, 5.0), timed(32, 7.0)]
    )
    graphs.drop_slow(Stopwatch(torch.device("cuda")))
    assert graphs.sizes() == {"decode": [2], "grouped": [], "mixed": [], "piecewise": [16, 32]}
