"""Which steps of a stage are captured in CUDA graphs, and which graph a step takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from workers.attention.context_splits import min_splits
from workers.attention.stage_attention import StageAttention
from workers.device.timing import least_milliseconds
from workers.graphs.full_graph import FullGraph, GraphPool, capture_full_graph
from workers.graphs.piecewise_graph import AttentionBuffers, PiecewiseCapture, PiecewiseGraph
from workers.graphs.static_inputs import StaticInputs, StaticRows
from workers.models.base import StageModel
from workers.progress import ProgressBar
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

_MAX_DECODE_ROWS, _MAX_CHUNKS = 32, 8
"""Rows of a step with prompts that is captured whole: those of a service under light load, where
launching takes as long as the step."""

_CLEARLY = 0.95
"""A graph goes only if a larger one takes less than this part of its time: timing has its noise."""

_Captured = TypeVar("_Captured", FullGraph, PiecewiseGraph)
_Graph = TypeVar("_Graph")


def decode_graph_sizes(max_rows: int) -> list[int]:
    """Decode steps to capture, by rows: every one while it is cheap, then such as waste little."""
    fine = [1, 2, 3, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 513, 16)]
    coarse = range(576, max_rows + 64, 64)
    return [*(rows for rows in (*fine, *coarse) if rows < max_rows), max_rows]


def prompt_graph_sizes(max_tokens: int) -> list[int]:
    """Other steps to capture, by tokens. Those of more keep the GPU busy for longer than it takes
    to launch their kernels one by one."""
    return [
        tokens for tokens in (*range(16, 641, 16), *range(672, 1025, 32)) if tokens <= max_tokens
    ]


@dataclass(slots=True)
class StageGraphs:
    """The captured steps, smallest first."""

    decodes: list[FullGraph] = field(default_factory=list[FullGraph])
    whole: list[PiecewiseGraph] = field(default_factory=list[PiecewiseGraph])
    pieces: list[PiecewiseGraph] = field(default_factory=list[PiecewiseGraph])

    def fitting(self, rows: StepRows) -> FullGraph | PiecewiseGraph | None:
        """The smallest for a step of these rows; None if there is none.

        Captured attention splits contexts by the number of rows alone: it is not for uneven ones.
        """
        if len(rows.slots) == rows.total and min_splits(rows.contexts) == 1:
            return _smallest(self.decodes, rows)
        return _smallest(self.whole, rows) or _smallest(self.pieces, rows)


class GraphCapture:
    """Captures the steps of one stage."""

    def __init__(
        self, model: StageModel, attention: StageAttention, slots: SlotTable, scratch_kv_index: int
    ) -> None:
        """`scratch_kv_index` is a place in the KV cache that nobody reads."""
        assert attention.caches, "steps that are captured have a cache"
        self._model, self._attention, self._caches = model, attention, attention.caches
        self._slots, self._scratch_kv_index = slots, scratch_kv_index
        self._pool = GraphPool()

    def capture(
        self, rows: list[int], tokens: list[int], hidden_like: torch.Tensor | None
    ) -> StageGraphs:
        """Capture these, the largest first, and keep those that are worth having. `hidden_like`
        [1, hidden_size] is what a later stage receives a token, None for the first."""
        graphs = StageGraphs()
        buffers = self._buffers(max(tokens, default=0))
        whole = self._attention.backend.capabilities.chunks_graph_safe
        count = len(rows) + len(tokens) * (1 + whole)
        with ProgressBar("capturing CUDA graphs", count) as progress:
            for size in sorted(tokens, reverse=True):
                hidden_in, own = _widened(hidden_like, size), buffers.of(size)
                graphs.pieces.insert(0, self._capture_prompts(size, None, own, hidden_in))
                progress.advance()
                if whole:
                    places = self._places(size)
                    graphs.whole.insert(0, self._capture_prompts(size, places, own, hidden_in))
                    progress.advance()
            for size in sorted(rows, reverse=True):
                graphs.decodes.insert(0, self._capture_decode(size, _widened(hidden_like, size)))
                progress.advance()
        graphs.decodes = drop_slow_graphs(graphs.decodes, _milliseconds)
        graphs.whole = drop_slow_graphs(graphs.whole, _milliseconds)
        graphs.pieces = drop_slow_graphs(graphs.pieces, _milliseconds)
        return graphs

    def _capture_decode(self, size: int, hidden_in: torch.Tensor | None) -> FullGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index)
        return capture_full_graph(inputs, self._model, self._attention, hidden_in, self._pool)

    def _capture_prompts(
        self,
        size: int,
        rows: StaticRows | None,
        buffers: AttentionBuffers,
        hidden_in: torch.Tensor | None,
    ) -> PiecewiseGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index, rows)
        capture = PiecewiseCapture(inputs, self._model, self._attention, buffers, hidden_in)
        return capture.capture(self._pool)

    def _places(self, size: int) -> StaticRows:
        block_size = self._caches[0].keys.shape[1]
        max_context = self._slots.block_tables.shape[1] * block_size
        return StaticRows(min(_MAX_DECODE_ROWS, size), _MAX_CHUNKS, max_context)

    def _buffers(self, size: int) -> AttentionBuffers:
        num_heads, num_kv_heads = self._attention.head_counts
        keys, head_dim = self._caches[0].keys, self._caches[0].keys.shape[-1]
        return AttentionBuffers(
            heads=keys.new_zeros(size, num_heads + 2 * num_kv_heads, head_dim),
            attended=keys.new_zeros(size, num_heads, head_dim),
        )


def drop_slow_graphs(graphs: list[_Graph], measure: Callable[[_Graph], float]) -> list[_Graph]:
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


def _smallest(graphs: list[_Captured], rows: StepRows) -> _Captured | None:
    """The first of `graphs`, smallest first, that holds these rows."""
    return next((graph for graph in graphs if graph.inputs.hold(rows)), None)


def _milliseconds(graph: FullGraph | PiecewiseGraph) -> float:
    """What a replay takes at best, over inputs that belong to nobody."""
    return least_milliseconds(graph.replay)


def _widened(hidden_like: torch.Tensor | None, size: int) -> torch.Tensor | None:
    return None if hidden_like is None else hidden_like.expand(size, -1).contiguous()
