"""CUDA graphs of steps: one launch, or one a layer, instead of hundreds.

A full graph is a whole decode step. A partial graph is a step with prompts, captured up to the
attention of the last layer; it serves any step of fewer tokens too. There are two kinds, of one
class. A piecewise graph leaves attention out, because attention depends on how the tokens are
divided into rows while everything else depends on their number alone: one piece up to the first
layer's attention, one from there to the second layer's, and so on; attention is launched between
the pieces. A mixed graph has static rows and is a single piece with all attention but the last
layer's.

What follows the last layer's attention is never captured in a partial graph: it is a few launches
over any number of the step's tokens.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from workers.attention.stage_attention import StageAttention
from workers.graphs.static_inputs import StaticInputs
from workers.models.base import StageModel, finish_last_layer, forward
from workers.step.paged_step import LastTokens, PagedStep


class GraphPool:
    """One memory pool for all graphs of a stage, and the stream on which they are captured. Only
    one of them runs at a time. The largest is captured first: the others fit into its memory."""

    def __init__(self) -> None:
        # Frees the graphs of an earlier runner: freeing them during a capture would invalidate it.
        gc.collect()
        self._handle = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Surrounds every `begin`: nothing else runs on the device meanwhile."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def begin(self) -> torch.cuda.CUDAGraph:
        """A graph that captures all kernels launched until its `capture_end`."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._handle)
        return graph


class CapturedStep:
    """A captured step of a stage over `inputs`, in pieces.

    The first stage looks tokens up; a later one reads `hidden_in` [size, hidden_size], which the
    stage before has sent.
    """

    def __init__(
        self,
        inputs: StaticInputs,
        model: StageModel,
        attention: StageAttention,
        hidden_in: torch.Tensor | None,
    ) -> None:
        self.inputs, self.pieces = inputs, list[torch.cuda.CUDAGraph]()
        self._model, self._attention, self._hidden_in = model, attention, hidden_in

    def replay(self) -> None:
        """Replay the pieces over whatever the inputs hold, without what is between them."""
        for piece in self.pieces:
            piece.replay()

    def _receive(self, hidden: torch.Tensor | None) -> None:
        """Take the hidden states [T, hidden_size], T <= size, of the stage before."""
        if self._hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self._hidden_in[: len(hidden)] = hidden


class FullGraph(CapturedStep):
    """A captured decode step of `inputs.size` rows of one token each."""

    step: PagedStep
    _hidden_out: torch.Tensor

    def capture(self, pool: GraphPool) -> "FullGraph":
        """Run the step once, which compiles its kernels outside of a capture, then capture it."""
        self.step = self.inputs.as_decode_step()
        self._compute()
        with pool.capturing():
            self.pieces.append(pool.begin())
            self._hidden_out = self._compute()
            self.pieces[0].capture_end()
        return self

    def run(self, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay the step over its loaded inputs. The next replay overwrites the result,
        [size, hidden_size]. `hidden` comes from the stage before."""
        self._receive(hidden)
        self.replay()
        return self._hidden_out

    def _compute(self) -> torch.Tensor:
        if self._hidden_in is None:
            self.inputs.resolve_tokens()
        return forward(self._model, self.step, self._hidden_in, self._attention.over(self.step))


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


class PartialGraph(CapturedStep):
    """A captured step of `inputs.size` tokens: mixed if `inputs.rows` is given, which are its rows,
    and otherwise piecewise, for any rows."""

    hidden: torch.Tensor
    """[size, hidden_size]: the last layer's input, once the pieces have run."""

    def capture(self, pool: GraphPool, buffers: AttentionBuffers) -> "PartialGraph":
        """Run the step once, which compiles its kernels outside of a capture, then capture it."""
        self._buffers = buffers
        mixed = self.inputs.rows is not None
        step = self.inputs.as_step_of_rows() if mixed else self.inputs.as_decode_step()
        for _ in self._compute(step):
            pass
        with pool.capturing():
            running = self._compute(step)
            for _ in range(1 if mixed else len(self._model.layers)):
                self.pieces.append(pool.begin())
                self.hidden = next(running)
                self.pieces[-1].capture_end()
        return self

    def run(
        self,
        step: PagedStep,
        hidden: torch.Tensor | None,
        last_tokens: Callable[[], LastTokens | None],
    ) -> torch.Tensor:
        """Replay the step over its loaded inputs, with attention for the rows of `step` where it is
        not captured. `last_tokens` is called once all captured work is queued."""
        self._receive(hidden)
        attention, total = self._attention.over(step, last_tokens), step.num_tokens
        qkv = self._attention.split_qkv(self._buffers.qkv).first(total)
        last = len(self.pieces) - 1
        for layer, piece in enumerate(self.pieces):
            piece.replay()
            if layer < last:
                attention.attend(layer, qkv, out=self._buffers.attended[:total])
        return finish_last_layer(self._model, self.hidden[:total], qkv, attention)

    def _compute(self, step: PagedStep) -> Generator[torch.Tensor]:
        """Yields at the end of each piece, with the input of the layer that it ends in."""
        layers, buffers = self._model.layers, self._buffers
        attention, qkv = self._attention.over(step), self._attention.split_qkv(buffers.qkv)
        hidden = self._hidden_in
        if hidden is None:
            self.inputs.resolve_tokens()
            hidden = self._model.embed(step)
        for index, layer in enumerate(layers):
            if index:
                hidden = layers[index - 1].after_attention(hidden, buffers.attended)
            attention.rotate_and_cache(index, layer.qkv(hidden), buffers.qkv)
            if self.inputs.rows is None or index == len(layers) - 1:
                yield hidden
            else:
                attention.attend(index, qkv, out=buffers.attended)
