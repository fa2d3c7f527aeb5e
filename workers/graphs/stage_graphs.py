"""The CUDA graphs of a stage: which are captured and kept, and which one a decoder's step takes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from workers.attention.backends.triton import has_skewed_context
from workers.attention.prefix_tiles import PrefixTiler
from workers.attention.stage_attention import StageAttention
from workers.device.timing import least_milliseconds
from workers.device.tuning import (
    CLEARLY_FASTER,
    DECODE_GRAPH_ROWS,
    DECODE_GRAPH_STRIDE,
    GROUPED_GRAPH_ROWS,
    MIXED_GRAPH_CHUNKS,
    MIXED_GRAPH_DECODE_ROWS,
    PROMPT_GRAPH_TOKENS,
)
from workers.graphs.captured_steps import (
    AttentionBuffers,
    CapturedStep,
    FullGraph,
    GraphPool,
    PartialGraph,
)
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes, StaticRows
from workers.models.base import StageModel
from workers.progress_bar import progress
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

_Graph = TypeVar("_Graph", bound=CapturedStep)
_AnyGraph = TypeVar("_AnyGraph")


@dataclass(slots=True)
class StageGraphs:
    """The captured steps of a stage, each list by rising size.

    decode     a token a row, in rows; attention included
    grouped    the same, with prefixes that rows share attended once
    mixed      a few decode rows and a few chunks, in tokens; attention included
    piecewise  any rows, in tokens; attention is launched between the pieces
    """

    decode: list[FullGraph] = field(default_factory=list[FullGraph])
    grouped: list[FullGraph] = field(default_factory=list[FullGraph])
    mixed: list[PartialGraph] = field(default_factory=list[PartialGraph])
    piecewise: list[PartialGraph] = field(default_factory=list[PartialGraph])

    def select(self, rows: StepRows) -> FullGraph | PartialGraph | None:
        """The smallest graph that has room for a step of these rows. None if the step has to be
        launched kernel by kernel.

        With a skewed context no decode graph is taken: captured attention splits contexts by the
        number of rows alone.
        """
        is_decode = len(rows.slots) == rows.total
        if is_decode and (grouped := self._grouped(rows)):
            return grouped
        if is_decode and not has_skewed_context(rows.contexts):
            return _smallest(self.decode, rows)
        return _smallest(self.mixed, rows) or _smallest(self.piecewise, rows)

    def _grouped(self, rows: StepRows) -> FullGraph | None:
        """The graph for rows some of which share a prefix that is worth it."""
        graph = _smallest(self.grouped, rows)
        if graph is None or graph.inputs.prefixes is None:
            return None
        tables = graph.inputs.prefixes.tables(rows)
        if tables is None or has_skewed_context(rows.contexts - tables.starts):
            return None
        return graph


def _smallest(graphs: list[_Graph], rows: StepRows) -> _Graph | None:
    return next((graph for graph in graphs if graph.inputs.has_room_for(rows)), None)


def decode_graph_sizes(max_rows: int) -> list[int]:
    """Rows of the decode steps to capture, rising, the last being `max_rows`."""
    stride = DECODE_GRAPH_STRIDE
    coarse = range(DECODE_GRAPH_ROWS[-1] + stride, max_rows + stride, stride)
    return [*(rows for rows in (*DECODE_GRAPH_ROWS, *coarse) if rows < max_rows), max_rows]


def grouped_graph_sizes(rows: Sequence[int]) -> list[int]:
    """The captured `rows` that are captured with shared prefixes, too: so coarse that
    start-up takes little longer. A few rows more cost less than attention saves."""
    return [
        count
        for count in rows
        if count in GROUPED_GRAPH_ROWS or count % DECODE_GRAPH_STRIDE == 0 or count == rows[-1]
    ]


def prompt_graph_sizes(max_tokens: int) -> list[int]:
    """Tokens of the steps with prompts to capture, rising, none above `max_tokens`."""
    return [tokens for tokens in PROMPT_GRAPH_TOKENS if tokens <= max_tokens]


def summary(graphs: StageGraphs, rows: Sequence[int], tokens: Sequence[int]) -> str:
    """Which sizes of graphs were kept, of the captured `rows` of decode steps and `tokens` of steps
    with prompts."""
    kinds = (
        ("decode", graphs.decode, rows, "rows"),
        ("grouped", graphs.grouped, grouped_graph_sizes(rows), "rows"),
        ("mixed", graphs.mixed, tokens, "tokens"),
        ("piecewise", graphs.piecewise, tokens, "tokens"),
    )
    return "; ".join(
        f"{kind} of {formatted_sizes([graph.inputs.size for graph in kept])} {unit} "
        f"({len(kept)} of {len(captured)} kept)"
        for kind, kept, captured, unit in kinds
        if kept
    )


def formatted_sizes(sizes: Sequence[int]) -> str:
    """Rising sizes as text. Three or more at even distances become a range."""
    parts: list[str] = []
    first = 0
    while first < len(sizes):
        last = _end_of_range(sizes, first)
        if last - first < 2:
            last = first
            parts.append(str(sizes[first]))
        else:
            distance = sizes[first + 1] - sizes[first]
            every = f" by {distance}" if distance > 1 else ""
            parts.append(f"{sizes[first]} to {sizes[last]}{every}")
        first = last + 1
    return ", ".join(parts)


def _end_of_range(sizes: Sequence[int], first: int) -> int:
    """The index of the last size such that all from `first` on are at even distances."""
    last = min(first + 1, len(sizes) - 1)
    distance = sizes[last] - sizes[first]
    while last + 1 < len(sizes) and sizes[last + 1] - sizes[last] == distance:
        last += 1
    return last


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
        self._model, self._attention, self._keys = model, attention, attention.caches[0].keys
        self._slots, self._scratch_kv_index = slots, scratch_kv_index
        self._prefix_tiler = prefix_tiler
        self._pool = GraphPool()

    def capture(
        self, rows: list[int], tokens: list[int], hidden_like: torch.Tensor | None
    ) -> StageGraphs:
        """Capture decode steps of these `rows` and steps with prompts of these `tokens`.

        The largest are first, and graphs that a larger one outruns are dropped. `hidden_like`
        [1, hidden_size] is what a later stage receives for a token, None on the first stage."""
        graphs, tiler = StageGraphs(), self._prefix_tiler
        # The stage's one input buffer, which all graphs share.
        most = max([*rows, *tokens], default=0)
        hidden = None if hidden_like is None else hidden_like.expand(most, -1).contiguous()
        buffers = self._buffers(max(tokens, default=0))
        captures, decode = list[Callable[[], None]](), partial(self._capture_decode, hidden)
        for size in sorted(tokens, reverse=True):
            prompts = partial(self._capture_prompts, hidden, size, buffers.first(size))
            captures.append(partial(prompts, graphs.piecewise, None))
            if self._attention.chunks_graph_safe:
                captures.append(partial(prompts, graphs.mixed, self._static_rows(size)))
        for size in sorted(rows, reverse=True):
            captures.append(partial(decode, size, graphs.decode, None))
        for size in reversed(grouped_graph_sizes(sorted(rows)) if tiler else []):
            captures.append(partial(decode, size, graphs.grouped, tiler))
        for capture in progress("capturing CUDA graphs", captures):
            capture()
        graphs.grouped = drop_slow_graphs(graphs.grouped, _milliseconds)
        graphs.decode = drop_slow_graphs(graphs.decode, _milliseconds)
        graphs.mixed = drop_slow_graphs(graphs.mixed, _milliseconds)
        graphs.piecewise = drop_slow_graphs(graphs.piecewise, _milliseconds)
        return graphs

    def _capture_decode(
        self,
        hidden: torch.Tensor | None,
        size: int,
        graphs: list[FullGraph],
        tiler: PrefixTiler | None,
    ) -> None:
        prefixes = StaticPrefixes(size, tiler) if tiler else None
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index, prefixes=prefixes)
        hidden_in = None if hidden is None else hidden[:size]
        graph = FullGraph(inputs, self._model, self._attention, hidden_in)
        graphs.insert(0, graph.capture(self._pool))

    def _capture_prompts(
        self,
        hidden: torch.Tensor | None,
        size: int,
        buffers: AttentionBuffers,
        graphs: list[PartialGraph],
        rows: StaticRows | None,
    ) -> None:
        inputs = StaticInputs(size, self._slots, self._scratch_kv_index, rows)
        hidden_in = None if hidden is None else hidden[:size]
        graph = PartialGraph(inputs, self._model, self._attention, hidden_in)
        graphs.insert(0, graph.capture(self._pool, buffers))

    def _static_rows(self, size: int) -> StaticRows:
        max_context = self._slots.block_tables.shape[1] * self._keys.shape[1]
        return StaticRows(min(MIXED_GRAPH_DECODE_ROWS, size), MIXED_GRAPH_CHUNKS, max_context)

    def _buffers(self, size: int) -> AttentionBuffers:
        num_heads, num_kv_heads = self._attention.head_counts
        head_dim = self._keys.shape[-1]
        return AttentionBuffers(
            qkv=self._keys.new_zeros(size, num_heads + 2 * num_kv_heads, head_dim),
            attended=self._keys.new_zeros(size, num_heads, head_dim),
        )


def drop_slow_graphs(
    graphs: list[_AnyGraph], measure: Callable[[_AnyGraph], float]
) -> list[_AnyGraph]:
    """The `graphs`, by rising size, without those that a larger one clearly outruns.

    Products by libraries are much slower for some numbers of rows than for slightly more: on an
    H200, 15 ms for 448 tokens of an 8B Llama, and 12 ms for 512.
    """
    kept: list[_AnyGraph] = []
    fastest = math.inf
    for graph in reversed(graphs):
        taken = measure(graph)
        if fastest > CLEARLY_FASTER * taken:
            kept.insert(0, graph)
        fastest = min(fastest, taken)
    return kept


def _milliseconds(graph: CapturedStep) -> float:
    """The shortest time of a replay, over inputs of the padding slot."""
    return least_milliseconds(graph.replay)
