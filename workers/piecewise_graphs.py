"""CUDA graphs of steps with prompts, in pieces: everything but attention.

Attention depends on how a step's tokens are cut into rows, the rest on their number alone. So a
step of few tokens, whose hundreds of launches would take longer than its work, is one graph up to
the first layer's attention, one from there to the next layer's, and so on; attention is launched in
between. What is captured for N tokens serves any fewer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.attention.attend import rotate_into_cache, split_heads
from workers.attention.base import AttentionBackend, LayerCache
from workers.cuda_graphs import GraphPool
from workers.layers.rotary import RotaryEmbedding
from workers.models.base import Attend
from workers.static_inputs import StaticInputs
from workers.step_tensors import StepTensors


@dataclass(frozen=True, slots=True)
class _Piece:
    """What comes before a layer's attention, and the heads [size, H + 2 Hkv, D] that it leaves."""

    graph: torch.cuda.CUDAGraph
    heads: torch.Tensor
    cache: LayerCache


@dataclass(frozen=True, slots=True)
class PiecewiseGraph:
    """A captured step of `inputs.size` tokens, of any rows."""

    inputs: StaticInputs
    backend: AttentionBackend
    head_counts: tuple[int, int]
    pieces: list[_Piece]
    attended: torch.Tensor
    last: torch.cuda.CUDAGraph
    hidden_in: torch.Tensor | None
    hidden_out: torch.Tensor

    def run(self, step: StepTensors, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay it over what its inputs were loaded with, attending by the rows of `step`. The
        result holds until the next one."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in.copy_(hidden)
        plan, total = self.backend.plan(step), step.num_tokens
        attended = self.attended[:total]
        for piece in self.pieces:
            piece.graph.replay()
            heads = split_heads(piece.heads[:total], self.head_counts)
            self.backend.forward(*heads, piece.cache, plan, out=attended)
        self.last.replay()
        return self.hidden_out


class PieceCapture:
    """Captures steps of one stage in pieces."""

    def __init__(
        self,
        backend: AttentionBackend,
        caches: list[LayerCache],
        head_counts: tuple[int, int],
        pool: GraphPool,
    ) -> None:
        """`head_counts` are the numbers of query and of KV heads."""
        self._backend, self._caches, self._head_counts = backend, caches, head_counts
        self._pool = pool

    def capture(
        self,
        inputs: StaticInputs,
        forward: Callable[[Attend], torch.Tensor],
        attended: torch.Tensor,
        hidden_in: torch.Tensor | None,
    ) -> PiecewiseGraph:
        """Capture `forward`, which runs a step over `inputs`; attention will leave its results in
        `attended` [size, H, D]."""
        pieces: list[_Piece] = []

        def rotate(layer: int, heads: torch.Tensor, rotary: RotaryEmbedding | None) -> torch.Tensor:
            assert rotary is not None, "models with a cache turn their heads"
            places = inputs.positions, inputs.slot_mapping
            rotate_into_cache(heads, rotary, self._caches[layer], *places, self._head_counts)
            return attended

        def cut(layer: int, heads: torch.Tensor, rotary: RotaryEmbedding | None) -> torch.Tensor:
            nonlocal graph
            rotate(layer, heads, rotary)
            graph.capture_end()
            pieces.append(_Piece(graph, heads, self._caches[layer]))
            graph = self._pool.begin()
            return attended

        forward(rotate)  # compiles what is not yet: a capture must not
        with self._pool.capturing():
            graph = self._pool.begin()
            hidden_out = forward(cut)
            graph.capture_end()
        return PiecewiseGraph(
            inputs=inputs,
            backend=self._backend,
            head_counts=self._head_counts,
            pieces=pieces,
            attended=attended,
            last=graph,
            hidden_in=hidden_in,
            hidden_out=hidden_out,
        )
