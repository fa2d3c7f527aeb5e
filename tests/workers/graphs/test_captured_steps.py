"""What a graph of a step with prompts captures. Capturing itself needs a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workers.graphs.captured_steps import AttentionBuffers, PartialGraph

LAYERS = 3
RUN = [
    ["resolve", "embed", "qkv 0", "rotate 0"],
    ["after 0", "qkv 1", "rotate 1"],
    ["after 1", "qkv 2", "rotate 2"],
]


class Recorded:
    """A stage, its inputs and a pool that record their calls in order."""

    def __init__(self, *, with_rows: bool) -> None:
        self.calls: list[str] = []
        self.inputs = SimpleNamespace(
            rows=object() if with_rows else None,
            resolve_tokens=lambda: self.calls.append("resolve"),
            as_decode_step=lambda: "tokens",
            as_step_of_rows=lambda: "rows",
        )
        self.model = SimpleNamespace(
            embed=lambda step: self.record("embed"), layers=[self.layer(i) for i in range(LAYERS)]
        )
        self.attention = SimpleNamespace(over=self.paged, split_qkv=lambda qkv: qkv)

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

    @contextmanager
    def capturing(self) -> Iterator[None]:
        yield

    def begin(self) -> SimpleNamespace:
        self.calls.append("begin")
        return SimpleNamespace(capture_end=lambda: self.calls.append("end"))


@pytest.mark.parametrize("with_rows", [False, True], ids=["piecewise", "mixed"])
def test_everything_up_to_the_last_attention_is_captured(with_rows: bool) -> None:
    stage: Any = Recorded(with_rows=with_rows)
    buffers = AttentionBuffers(torch.zeros(4), torch.zeros(4))
    graph = PartialGraph(stage.inputs, stage.model, stage.attention, None)
    captured = graph.capture(stage, buffers)
    if with_rows:
        once = [*RUN[0], "attend 0", *RUN[1], "attend 1", *RUN[2]]
        assert stage.calls == [*once, "begin", *once, "end"]
        assert len(captured.pieces) == 1
    else:
        pieces = [call for piece in RUN for call in ("begin", *piece, "end")]
        assert stage.calls == [*RUN[0], *RUN[1], *RUN[2], *pieces]
        assert len(captured.pieces) == LAYERS
    # What the last layer's attention starts from, of the run that was captured.
    assert captured.hidden == stage.calls.index("after 1", len(stage.calls) // 2) + 1
