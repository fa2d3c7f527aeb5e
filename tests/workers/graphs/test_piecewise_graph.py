"""What of a step with prompts is captured, and in which graph. Capturing itself needs a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workers.graphs.piecewise_graph import AttentionBuffers, PiecewiseCapture

LAYERS = 3
RUN = [
    ["resolve", "embed", "qkv 0", "rotate 0"],
    ["after 0", "qkv 1", "rotate 1"],
    ["after 1", "qkv 2", "rotate 2"],
]


class Recorded:
    """A stage, its inputs and a pool that tell what they are asked, in order."""

    def __init__(self, *, with_rows: bool) -> None:
        self.told: list[str] = []
        self.inputs = SimpleNamespace(
            rows=object() if with_rows else None,
            resolve_tokens=lambda: self.told.append("resolve"),
            as_decode_step=lambda: "tokens",
            as_step_of_rows=lambda: "rows",
        )
        self.model = SimpleNamespace(
            embed=lambda step: self.tell("embed"), layers=[self.layer(i) for i in range(LAYERS)]
        )
        self.attention = SimpleNamespace(of=self.of, split_qkv=lambda qkv: qkv)

    def tell(self, what: str) -> torch.Tensor:
        self.told.append(what)
        return torch.tensor(float(len(self.told)))

    def layer(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(
            qkv=lambda hidden: self.tell(f"qkv {number}"),
            after_attention=lambda hidden, attended: self.tell(f"after {number}"),
        )

    def of(self, step: str) -> SimpleNamespace:
        assert step == ("rows" if self.inputs.rows else "tokens")
        return SimpleNamespace(
            rotate_and_cache=lambda layer, qkv, out: self.tell(f"rotate {layer}"),
            attend=lambda layer, heads, out: self.tell(f"attend {layer}"),
        )

    @contextmanager
    def capturing(self) -> Iterator[None]:
        yield

    def begin(self) -> SimpleNamespace:
        self.told.append("begin")
        return SimpleNamespace(capture_end=lambda: self.told.append("end"))


@pytest.mark.parametrize("with_rows", [False, True], ids=["in_pieces", "whole"])
def test_everything_up_to_the_last_attention_is_captured(with_rows: bool) -> None:
    stage: Any = Recorded(with_rows=with_rows)
    buffers = AttentionBuffers(torch.zeros(4), torch.zeros(4))
    capture = PiecewiseCapture(stage.inputs, stage.model, stage.attention, buffers, None)
    captured = capture.capture(stage)
    if with_rows:
        once = [*RUN[0], "attend 0", *RUN[1], "attend 1", *RUN[2]]
        assert stage.told == [*once, "begin", *once, "end"]
        assert len(captured.pieces) == 1
    else:
        pieces = [told for piece in RUN for told in ("begin", *piece, "end")]
        assert stage.told == [*RUN[0], *RUN[1], *RUN[2], *pieces]
        assert len(captured.pieces) == LAYERS
    # What the last layer's attention starts from, of the run that was captured.
    assert captured.hidden == stage.told.index("after 1", len(stage.told) // 2) + 1
