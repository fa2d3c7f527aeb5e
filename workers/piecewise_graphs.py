"""CUDA graphs of steps with prompts, in pieces: everything but attention.

Attention depends on how a step's tokens are cut into rows, the rest on their number alone. So a
step of few tokens, whose hundreds of launches would take longer than its work, is one graph up to
the first layer's attention, one from there to the next layer's, and so on; attention is launched in
between. What follows the last layer's attention is not captured: it is a few launches, of any
number of the step's tokens. What is captured for N tokens serves any fewer.
"""

from dataclasses import dataclass

import torch

from workers.attention.attend import StageAttention
from workers.cuda_graphs import GraphPool
from workers.forward import finish
from workers.models.base import StageModel
from workers.static_inputs import StaticInputs
from workers.step_tensors import StepTensors


@dataclass(frozen=True, slots=True)
class PieceBuffers:
    """Device memory on both sides of an attention, shared by all layers of all captured steps.

    heads     [N, H + 2 Hkv, D], where a piece leaves its turned heads
    attended  [N, H, D], where the next one finds what they attended to
    """

    heads: torch.Tensor
    attended: torch.Tensor

    def of(self, size: int) -> "PieceBuffers":
        """Those of a step of `size` <= N tokens."""
        return PieceBuffers(self.heads[:size], self.attended[:size])


@dataclass(frozen=True, slots=True)
class PiecewiseGraph:
    """A captured step of `inputs.size` tokens, of any rows: a piece a layer, each up to the layer's
    attention. `hidden` [size, hidden_size] is where the last one leaves its layer's input."""

    inputs: StaticInputs
    model: StageModel
    attention: StageAttention
    buffers: PieceBuffers
    pieces: list[torch.cuda.CUDAGraph]
    hidden_in: torch.Tensor | None
    hidden: torch.Tensor

    def run(self, step: StepTensors, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay it over what its inputs were loaded with, attending by the rows of `step`."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in[: len(hidden)] = hidden
        attention, total = self.attention.of(step), step.num_tokens
        heads = self.attention.split(self.buffers.heads).first(total)
        last = len(self.pieces) - 1
        for layer, piece in enumerate(self.pieces):
            piece.replay()
            if layer < last:
                attention.attend(layer, heads, out=self.buffers.attended[:total])
        return finish(self.model, step, self.hidden[:total], heads, attention)

    def replay(self) -> None:
        """Replay it without any attention."""
        for piece in self.pieces:
            piece.replay()


def capture_pieces(
    inputs: StaticInputs,
    model: StageModel,
    attention: StageAttention,
    buffers: PieceBuffers,
    hidden_in: torch.Tensor | None,
    pool: GraphPool,
) -> PiecewiseGraph:
    """Capture a stage over `inputs`. `hidden_in` [size, hidden_size] is where a later stage finds
    what the one before sent."""
    step = inputs.as_decode_step()
    turn = attention.of(step).turn

    def piece(layer: int, hidden: torch.Tensor | None) -> torch.Tensor:
        """From the attention of the layer before, if any, to this one's: its input."""
        if layer:
            assert hidden is not None
            hidden = model.layers[layer - 1].after_attention(hidden, buffers.attended)
        else:
            inputs.resolve_tokens()
            hidden = model.embed(step) if hidden is None else hidden
        turn(layer, model.layers[layer].heads(hidden), buffers.heads)
        return hidden

    hidden = hidden_in
    for layer in range(len(model.layers)):  # compiles what is not yet: a capture must not
        hidden = piece(layer, hidden)
    pieces: list[torch.cuda.CUDAGraph] = []
    hidden = hidden_in
    with pool.capturing():
        for layer in range(len(model.layers)):
            graph = pool.begin()
            hidden = piece(layer, hidden)
            graph.capture_end()
            pieces.append(graph)
    assert hidden is not None
    return PiecewiseGraph(inputs, model, attention, buffers, pieces, hidden_in, hidden)
