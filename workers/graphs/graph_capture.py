"""Captures the steps of one stage in CUDA graphs, and keeps the graphs that are of use."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch

from workers.attention.prefix_tiles import PrefixTiler
from workers.attention.stage_attention import StageAttention
from workers.device.timing import least_milliseconds
from workers.device.tuning import (
    CLEARLY_FASTER,
    MIXED_GRAPH_CHUNKS,
    MIXED_GRAPH_DECODE_ROWS,
)
from workers.graphs.full_graph import FullGraph, capture_full_graph
from workers.graphs.graph_pool import GraphPool
from workers.graphs.graph_selection import StageGraphs
from workers.graphs.graph_sizes import grouped_graph_sizes
from workers.graphs.partial_graph import AttentionBuffers, PartialCapture, PartialGraph
from workers.graphs.static_inputs import StaticInputs, StaticRows
from workers.graphs.static_prefixes import StaticPrefixes
from workers.models.base import StageModel
from workers.progress_bar import ProgressBar
from workers.step.slot_table import SlotTable

_Graph = TypeVar("_Graph")


class GraphCapture:
    """Captures the steps of one stage."""

    def __init__(
        self,
        model: StageModel,
        attention: StageAttention,
        slots: SlotTable,
        scratch_kv_index: int,
        prefix_tiler: PrefixTiler | None,
    ) -> None:
        """`scratch_kv_index` is an index into the KV cache that nobody reads. With a `prefix_tiler`
        decode steps are captured once more, with room for shared prefixes."""
        assert attention.caches, "steps that are captured have a cache"
        self._model, self._attention, self._caches = model, attention, attention.caches
        self._slots, self._scratch_kv_index = slots, scratch_kv_index
        self._prefix_tiler = prefix_tiler
        self._pool = GraphPool()

    def capture(
        self, rows: list[int], tokens: list[int], hidden_like: torch.Tensor | None
    ) -> StageGraphs:
        """Capture decode steps of these `rows` and steps with prompts of these `tokens`, largest
        first, and drop graphs that a larger one outruns. `hidden_like` [1, hidden_size] is what a
        later stage receives for a token, None on the first stage."""
        graphs = StageGraphs()
        hidden = _widened(hidden_like, max([*rows, *tokens], default=0))
        buffers = self._buffers(max(tokens, default=0))
        mixed, tiler = self._attention.chunks_graph_safe, self._prefix_tiler
        grouped = grouped_graph_sizes(sorted(rows)) if tiler else []
        count = len(rows) + len(grouped) + len(tokens) * (1 + mixed)
        with ProgressBar("capturing CUDA graphs", count) as progress:
            for size in sorted(tokens, reverse=True):
                hidden_in, own = _first(hidden, size), buffers.first(size)
                graphs.piecewise.insert(0, self._capture_prompts(size, None, own, hidden_in))
                progress.advance()
                if mixed:
                    rows_of_step = self._static_rows(size)
                    graphs.mixed.insert(
                        0, self._capture_prompts(size, rows_of_step, own, hidden_in)
                    )
                    progress.advance()
            for size in sorted(rows, reverse=True):
                graphs.decode.insert(0, self._capture_decode(size, None, _first(hidden, size)))
                progress.advance()
            for size in reversed(grouped):
                graph = self._capture_decode(size, tiler, _first(hidden, size))
                graphs.grouped.insert(0, graph)
                progress.advance()
        graphs.grouped = drop_slow_graphs(graphs.grouped, _milliseconds)
        graphs.decode = drop_slow_graphs(graphs.decode, _milliseconds)
        graphs.mixed = drop_slow_graphs(graphs.mixed, _milliseconds)
        graphs.piecewise = drop_slow_graphs(graphs.piecewise, _milliseconds)
        return graphs

    def _capture_decode(
        self, size: int, tiler: PrefixTiler | None, hidden_in: torch.Tensor | None
    ) -> FullGraph:
        prefixes = StaticPrefixes(size, tiler) if tiler else None
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index, prefixes=prefixes)
        return capture_full_graph(inputs, self._model, self._attention, hidden_in, self._pool)

    def _capture_prompts(
        self,
        size: int,
        rows: StaticRows | None,
        buffers: AttentionBuffers,
        hidden_in: torch.Tensor | None,
    ) -> PartialGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index, rows)
        capture = PartialCapture(inputs, self._model, self._attention, buffers, hidden_in)
        return capture.capture(self._pool)

    def _static_rows(self, size: int) -> StaticRows:
        block_size = self._caches[0].keys.shape[1]
        max_context = self._slots.block_tables.shape[1] * block_size
        return StaticRows(min(MIXED_GRAPH_DECODE_ROWS, size), MIXED_GRAPH_CHUNKS, max_context)

    def _buffers(self, size: int) -> AttentionBuffers:
        num_heads, num_kv_heads = self._attention.head_counts
        keys, head_dim = self._caches[0].keys, self._caches[0].keys.shape[-1]
        return AttentionBuffers(
            qkv=keys.new_zeros(size, num_heads + 2 * num_kv_heads, head_dim),
            attended=keys.new_zeros(size, num_heads, head_dim),
        )


def drop_slow_graphs(graphs: list[_Graph], measure: Callable[[_Graph], float]) -> list[_Graph]:
    """The `graphs`, by rising size, without those that a larger one clearly outruns.

    Products by libraries are much slower for some numbers of rows than for slightly more: on an
    H200, 15 ms for 448 tokens of an 8B Llama, and 12 ms for 512.
    """
    kept: list[_Graph] = []
    fastest = math.inf
    for graph in reversed(graphs):
        taken = measure(graph)
        if fastest > CLEARLY_FASTER * taken:
            kept.insert(0, graph)
        fastest = min(fastest, taken)
    return kept


def _milliseconds(graph: FullGraph | PartialGraph) -> float:
    """The shortest time of a replay, over inputs of the padding slot."""
    return least_milliseconds(graph.replay)


def _widened(hidden_like: torch.Tensor | None, size: int) -> torch.Tensor | None:
    """[size, hidden_size]: the stage's one input buffer, which all graphs share."""
    return None if hidden_like is None else hidden_like.expand(size, -1).contiguous()


def _first(hidden: torch.Tensor | None, size: int) -> torch.Tensor | None:
    return None if hidden is None else hidden[:size]
