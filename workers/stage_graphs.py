"""Which steps of a stage are captured in CUDA graphs, and which graph a step takes."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import torch

from workers.attention.attend import StageAttention
from workers.cuda_graphs import DecodeGraph, GraphPool, capture_decode
from workers.models.base import StageModel
from workers.piecewise_graphs import PieceBuffers, PiecewiseGraph, capture_pieces
from workers.progress import ProgressBar
from workers.slots import SlotTable
from workers.static_inputs import StaticInputs

_TIMED_REPLAYS = 3
_CLEARLY = 0.95
"""A graph goes only if a larger one takes less than this part of its time: timing has its noise."""

_logger = logging.getLogger(__name__)

_Graph = TypeVar("_Graph")


def row_ladder(max_rows: int) -> list[int]:
    """Decode steps to capture, by rows: every one while it is cheap, then such as waste little."""
    fine = [1, 2, 3, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 513, 16)]
    coarse = range(576, max_rows + 64, 64)
    return [*(rows for rows in (*fine, *coarse) if rows < max_rows), max_rows]


def token_ladder(max_tokens: int) -> list[int]:
    """Other steps to capture, by tokens. Those of more keep the GPU busy for longer than it takes
    to launch their kernels one by one."""
    return [
        tokens for tokens in (*range(16, 641, 16), *range(672, 1025, 32)) if tokens <= max_tokens
    ]


@dataclass(slots=True)
class StageGraphs:
    """The captured steps, smallest first."""

    decodes: list[DecodeGraph] = field(default_factory=list[DecodeGraph])
    pieces: list[PiecewiseGraph] = field(default_factory=list[PiecewiseGraph])

    def fitting(self, rows: int, tokens: int) -> DecodeGraph | PiecewiseGraph | None:
        """The smallest for a step of so many rows and tokens; None if there is none."""
        graphs = self.decodes if rows == tokens else self.pieces
        return next((graph for graph in graphs if graph.inputs.size >= tokens), None)


class GraphCapture:
    """Captures the steps of one stage."""

    def __init__(
        self, model: StageModel, attention: StageAttention, slots: SlotTable, scratch_place: int
    ) -> None:
        """`scratch_place` is a place in the KV cache that nobody reads."""
        self._model, self._attention = model, attention
        self._slots, self._scratch_place = slots, scratch_place
        self._pool = GraphPool()

    def capture(
        self, rows: list[int], tokens: list[int], hidden_like: torch.Tensor | None
    ) -> StageGraphs:
        """Capture these, the largest first, and keep those that are worth having. `hidden_like`
        [1, hidden_size] is what a later stage receives a token, None for the first."""
        started, before = time.monotonic(), torch.cuda.mem_get_info()[0]
        graphs = StageGraphs()
        buffers = self._buffers(max(tokens, default=0))
        with ProgressBar("capturing CUDA graphs", len(rows) + len(tokens)) as progress:
            for size in sorted(tokens, reverse=True):
                hidden_in = _widened(hidden_like, size)
                graphs.pieces.insert(0, self._capture_pieces(buffers.of(size), size, hidden_in))
                progress.advance()
            for size in sorted(rows, reverse=True):
                graphs.decodes.insert(0, self._capture_decode(size, _widened(hidden_like, size)))
                progress.advance()
        graphs.decodes = worth_having(graphs.decodes, _milliseconds)
        graphs.pieces = worth_having(graphs.pieces, _milliseconds)
        taken = (before - torch.cuda.mem_get_info()[0]) >> 20
        seconds = time.monotonic() - started
        kept = len(graphs.decodes) + len(graphs.pieces)
        told = "CUDA graphs of %d steps, of which %d are worth having: %.1f s, %d MiB"
        _logger.info(told, len(rows) + len(tokens), kept, seconds, taken)
        return graphs

    def _capture_decode(self, size: int, hidden_in: torch.Tensor | None) -> DecodeGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_place)
        return capture_decode(inputs, self._model, self._attention, hidden_in, self._pool)

    def _capture_pieces(
        self, buffers: PieceBuffers, size: int, hidden_in: torch.Tensor | None
    ) -> PiecewiseGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_place)
        return capture_pieces(inputs, self._model, self._attention, buffers, hidden_in, self._pool)

    def _buffers(self, size: int) -> PieceBuffers:
        caches, (num_heads, num_kv_heads) = self._attention.caches, self._attention.head_counts
        assert caches, "steps that are captured have a cache"
        keys, head_dim = caches[0].keys, caches[0].keys.shape[-1]
        return PieceBuffers(
            heads=keys.new_zeros(size, num_heads + 2 * num_kv_heads, head_dim),
            attended=keys.new_zeros(size, num_heads, head_dim),
        )


def worth_having(graphs: list[_Graph], measure: Callable[[_Graph], float]) -> list[_Graph]:
    """Of `graphs`, smallest first, those that none of the larger ones clearly outruns.

    Products by libraries are much slower for some numbers of rows than for slightly more: on an
    H200, 15 ms for 448 tokens of an 8B Llama, and 12 for 512.
    """
    worth: list[_Graph] = []
    least = math.inf
    for graph in reversed(graphs):
        taken = measure(graph)
        if least > _CLEARLY * taken:
            worth.insert(0, graph)
        least = min(least, taken)
    return worth


def _milliseconds(graph: DecodeGraph | PiecewiseGraph) -> float:
    """What a replay takes at best, over inputs that belong to nobody."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_TIMED_REPLAYS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return min(start.elapsed_time(end) for start, end in pairwise(marks))


def _widened(hidden_like: torch.Tensor | None, size: int) -> torch.Tensor | None:
    return None if hidden_like is None else hidden_like.expand(size, -1).contiguous()
