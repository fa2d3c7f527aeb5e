"""CUDA graphs of steps with prompts, of few tokens: what follows the last layer's attention, a few
launches of any number of the step's tokens, is never captured, the rest in one of two ways.

Whole, in places for a few rows. Or in pieces, everything but attention, which depends on how the
tokens are cut into rows, the rest on their number alone: one graph up to the first layer's
attention, one from there to the next layer's, and so on; attention is launched in between. What is
captured for N tokens serves any fewer.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from workers.attention.stage_attention import StageAttention
from workers.graphs.full_graph import GraphPool
from workers.graphs.static_inputs import StaticInputs
from workers.models.base import StageModel
from workers.models.layer_loop import finish_last_layer
from workers.step.tensors import Ends, StepTensors


@dataclass(frozen=True, slots=True)
class AttentionBuffers:
    """Device memory on both sides of an attention, shared by all layers of all captured steps.

    heads     [N, H + 2 Hkv, D], where a layer leaves its rotated heads
    attended  [N, H, D], where it finds what they attended to
    """

    heads: torch.Tensor
    attended: torch.Tensor

    def of(self, size: int) -> "AttentionBuffers":
        """Those of a step of `size` <= N tokens."""
        return AttentionBuffers(self.heads[:size], self.attended[:size])


@dataclass(frozen=True, slots=True)
class PiecewiseGraph:
    """A captured step of `inputs.size` tokens: in the rows that `inputs.rows` has places for, or,
    where it has none, in any. `pieces` is one graph, or one a layer, each up to the layer's
    attention. `hidden` [size, hidden_size] is where the last layer's input is left."""

    inputs: StaticInputs
    model: StageModel
    attention: StageAttention
    buffers: AttentionBuffers
    pieces: list[torch.cuda.CUDAGraph]
    hidden_in: torch.Tensor | None
    hidden: torch.Tensor

    def run(
        self, step: StepTensors, hidden: torch.Tensor | None, ends: Callable[[], Ends | None]
    ) -> torch.Tensor:
        """Replay it over what its inputs were loaded with, attending by the rows of `step` where
        that was not captured. `ends` are asked for once all that was captured is under way."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in[: len(hidden)] = hidden
        attention, total = self.attention.of(step), step.num_tokens
        heads = self.attention.split_qkv(self.buffers.heads).first(total)
        last = len(self.pieces) - 1
        for layer, piece in enumerate(self.pieces):
            piece.replay()
            if layer < last:
                attention.attend(layer, heads, out=self.buffers.attended[:total])
        return finish_last_layer(self.model, self.hidden[:total], heads, attention, ends())

    def replay(self) -> None:
        """Replay it over what its inputs hold, without any attention that was not captured."""
        for piece in self.pieces:
            piece.replay()


class PiecewiseCapture:
    """Captures one step of a stage over `inputs`: whole if these have rows. `hidden_in`
    [size, hidden_size] is where a later stage finds what the one before sent."""

    def __init__(
        self,
        inputs: StaticInputs,
        model: StageModel,
        attention: StageAttention,
        buffers: AttentionBuffers,
        hidden_in: torch.Tensor | None,
    ) -> None:
        self._inputs, self._model, self._attention = inputs, model, attention
        self._buffers, self._hidden_in = buffers, hidden_in

    def capture(self, pool: GraphPool) -> PiecewiseGraph:
        """Run once to compile what is not yet, which a capture must not, then capture."""
        whole = self._inputs.rows is not None
        step = self._inputs.as_step_of_rows() if whole else self._inputs.as_decode_step()
        for _ in self._run(step):
            pass
        pieces: list[torch.cuda.CUDAGraph] = []
        with pool.capturing():
            running, hidden = self._run(step), None
            for _ in range(1 if whole else len(self._model.layers)):
                pieces.append(pool.begin())
                hidden = next(running)
                pieces[-1].capture_end()
        assert hidden is not None, "a stage has layers"
        return PiecewiseGraph(
            self._inputs,
            self._model,
            self._attention,
            self._buffers,
            pieces,
            self._hidden_in,
            hidden,
        )

    def _run(self, step: StepTensors) -> Generator[torch.Tensor]:
        """Each layer's input once all is done up to its attention; of a step whose attention is run
        too the last layer's alone."""
        model, hidden = self._model, self._hidden_in
        attention, heads = self._attention.of(step), self._attention.split_qkv(self._buffers.heads)
        last = len(model.layers) - 1
        for layer in range(last + 1):
            hidden = self._enter(layer, step, hidden)
            attention.rotate_and_cache(layer, model.layers[layer].qkv(hidden), self._buffers.heads)
            if self._inputs.rows is None or layer == last:
                yield hidden
            else:
                attention.attend(layer, heads, out=self._buffers.attended)

    def _enter(self, layer: int, step: StepTensors, hidden: torch.Tensor | None) -> torch.Tensor:
        """A layer's input: what the one before makes of its own and what was attended to."""
        if layer:
            assert hidden is not None
            before = self._model.layers[layer - 1]
            return before.after_attention(hidden, self._buffers.attended)
        self._inputs.resolve_tokens()
        return self._model.embed(step) if hidden is None else hidden
