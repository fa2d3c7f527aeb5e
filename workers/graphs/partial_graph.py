"""Partial CUDA graphs: steps with prompts, captured up to the attention of the last layer.

There are two kinds, of one class. A piecewise graph leaves attention out, because attention depends
on how the tokens are divided into rows while everything else depends on their number alone: one
piece up to the first layer's attention, one from there to the second layer's, and so on; attention
is launched between the pieces. A mixed graph has static rows and is a single piece with all
attention but the last layer's. Each serves any step of fewer tokens too.

What follows the last layer's attention is never captured: it is a few launches over any number of
the step's tokens.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch

from workers.attention.stage_attention import StageAttention
from workers.graphs.graph_pool import GraphPool
from workers.graphs.static_inputs import StaticInputs
from workers.models.base import StageModel, finish_last_layer
from workers.step.paged_step import LastTokens, PagedStep


@dataclass(frozen=True, slots=True)
class AttentionBuffers:
    """Input and output of attention at fixed addresses, shared by all layers and captured steps.

    qkv       [N, H + 2 Hkv, D]  rotated queries and keys, and values
    attended  [N, H, D]
    """

    qkv: torch.Tensor
    attended: torch.Tensor

    def first(self, size: int) -> "AttentionBuffers":
        """The part for the first `size` <= N tokens."""
        return AttentionBuffers(self.qkv[:size], self.attended[:size])


@dataclass(frozen=True, slots=True)
class PartialGraph:
    """A captured step of `inputs.size` tokens. It is mixed if `inputs.rows` is given, which are its
    rows, and otherwise piecewise, for any rows.

    pieces  piecewise: one graph a layer, each up to the layer's attention; mixed: a single graph
    hidden  [size, hidden_size]: the last layer's input, once the pieces have run
    """

    inputs: StaticInputs
    model: StageModel
    attention: StageAttention
    buffers: AttentionBuffers
    pieces: list[torch.cuda.CUDAGraph]
    hidden_in: torch.Tensor | None
    hidden: torch.Tensor

    def run(
        self,
        step: PagedStep,
        hidden: torch.Tensor | None,
        last_tokens: Callable[[], LastTokens | None],
    ) -> torch.Tensor:
        """Replay the step over its loaded inputs, with attention for the rows of `step` where it is
        not captured. `last_tokens` is called once all captured work is queued."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in[: len(hidden)] = hidden
        attention, total = self.attention.paged(step, last_tokens), step.num_tokens
        qkv = self.attention.split_qkv(self.buffers.qkv).first(total)
        last = len(self.pieces) - 1
        for layer, piece in enumerate(self.pieces):
            piece.replay()
            if layer < last:
                attention.attend(layer, qkv, out=self.buffers.attended[:total])
        return finish_last_layer(self.model, self.hidden[:total], qkv, attention)

    def replay(self) -> None:
        """Replay the pieces over whatever the inputs hold, without attention between them."""
        for piece in self.pieces:
            piece.replay()


class PartialCapture:
    """Captures one step of a stage over `inputs`, with its attention if they have rows.

    A later stage reads `hidden_in` [size, hidden_size], which the stage before has sent.
    """

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

    def capture(self, pool: GraphPool) -> PartialGraph:
        """Run the step once, which compiles its kernels outside of a capture, then capture it."""
        mixed = self._inputs.rows is not None
        step = self._inputs.as_step_of_rows() if mixed else self._inputs.as_decode_step()
        for _ in self._run(step):
            pass
        pieces: list[torch.cuda.CUDAGraph] = []
        with pool.capturing():
            running, hidden = self._run(step), None
            for _ in range(1 if mixed else len(self._model.layers)):
                pieces.append(pool.begin())
                hidden = next(running)
                pieces[-1].capture_end()
        assert hidden is not None, "a stage has layers"
        return PartialGraph(
            self._inputs,
            self._model,
            self._attention,
            self._buffers,
            pieces,
            self._hidden_in,
            hidden,
        )

    def _run(self, step: PagedStep) -> Generator[torch.Tensor]:
        """Yields at the end of each piece, with the input of the layer that it ends in."""
        model = self._model
        attention = self._attention.paged(step)
        qkv = self._attention.split_qkv(self._buffers.qkv)
        last = len(model.layers) - 1
        hidden = self._first_input(step)
        for layer in range(last + 1):
            if layer:
                hidden = model.layers[layer - 1].after_attention(hidden, self._buffers.attended)
            attention.rotate_and_cache(layer, model.layers[layer].qkv(hidden), self._buffers.qkv)
            if self._inputs.rows is None or layer == last:
                yield hidden
            else:
                attention.attend(layer, qkv, out=self._buffers.attended)

    def _first_input(self, step: PagedStep) -> torch.Tensor:
        """The first layer's input: embeddings, or what the stage before computed."""
        if self._hidden_in is not None:
            return self._hidden_in
        self._inputs.resolve_tokens()
        return self._model.embed(step)
