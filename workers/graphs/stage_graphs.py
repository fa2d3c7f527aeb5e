"""The CUDA graphs of a stage: which are captured and kept, and which one a decoder's step takes.

A full graph is a whole decode step. A partial graph is a step with prompts, captured up to the
attention of the last layer, which serves any step of fewer tokens too. What follows is a few
launches over any number of the step's tokens.

A piecewise graph leaves attention out, which depends on how tokens are divided into rows: each of
its pieces ends at a layer's attention. Everything else depends on the tokens' number alone. A mixed
graph has static rows, and is a single piece with all attention but the last layer's.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeVar

import torch

from workers.attention.backends.triton import min_splits
from workers.attention.prefix_tiles import PrefixTiler
from workers.attention.stage_attention import LayerAttention, StageAttention
from workers.device.tuning import (
    DECODE_GRAPH_ROWS,
    DECODE_GRAPH_STRIDE,
    GROUPED_GRAPH_ROWS,
    MIXED_GRAPH_CHUNKS,
    MIXED_GRAPH_DECODE_ROWS,
    PROMPT_GRAPH_TOKENS,
)
from workers.graphs.captured_step import CapturedStep, FullGraph, GraphPool, Graphs, GraphSizes
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes, StaticRows
from workers.models.base import StageModel, finish_last_layer
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

DecodeGraph = FullGraph[StaticInputs]
"""A whole decode step of `inputs.size` rows of one token each."""


@dataclass(frozen=True, slots=True)
class AttentionBuffers:
    """Input and output of attention at fixed addresses, shared by all layers and captured steps of
    at most N tokens.

    qkv       [N * Q], where a token has at most Q numbers of queries, keys and values, rotated
    attended  [N * A], likewise
    """

    qkv: torch.Tensor
    attended: torch.Tensor

    @classmethod
    def of(cls, layers: Sequence[LayerAttention], size: int, dtype: torch.dtype) -> Self:
        """For steps of at most `size` tokens of a model in `dtype`, which the cache may not be."""
        dims = [each.own_cache.keys.shape[-1] for each in layers]
        heads = [each.counts[0] for each in layers]
        both = [heads + 2 * each.counts[1] for heads, each in zip(heads, layers, strict=True)]
        widths = (max(map(int.__mul__, counts, dims)) for counts in (both, heads))
        device = layers[0].own_cache.keys.device
        return cls(*(torch.zeros(size * width, dtype=dtype, device=device) for width in widths))

    def of_layer(self, layer: LayerAttention, size: int) -> "LayerBuffers":
        """The buffers of `size` tokens in a layer."""
        (heads, kv_heads), dim = layer.counts, layer.own_cache.keys.shape[-1]
        both = heads + 2 * kv_heads
        return LayerBuffers(
            self.qkv[: size * both * dim].view(size, both, dim),
            self.attended[: size * heads * dim].view(size, heads, dim),
        )


class LayerBuffers(NamedTuple):
    """Queries, keys and values [T, H + 2 Hkv, D] of a layer, and what it attends to [T, H, D]."""

    qkv: torch.Tensor
    attended: torch.Tensor


class PartialGraph(CapturedStep[StaticInputs]):
    """A captured step of `inputs.size` tokens: mixed if `inputs.rows` are given, else piecewise."""

    hidden: torch.Tensor
    """[size, hidden_size]: the last layer's input, once the pieces have run."""

    def capture(self, pool: GraphPool, buffers: AttentionBuffers) -> "PartialGraph":
        """Run the step once, which compiles its kernels outside of a capture, then capture it."""
        self._buffers = buffers
        mixed = self.inputs.rows is not None
        step = self.inputs.as_step_of_rows() if mixed else self.inputs.step
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
        """Replay the step over its loaded inputs, and attend where that is not captured.
        `last_tokens` is called once all captured work is queued."""
        self._receive(hidden)
        attention, total = self._attention.over(step, last_tokens), step.num_tokens
        layers, last = self._attention.layers, len(self.pieces) - 1
        for index, piece in enumerate(self.pieces):
            piece.replay()
            if index < last:
                own = self._buffers.of_layer(layers[index], total)
                attention.attend(index, layers[index].split_qkv(own.qkv), out=own.attended)
        own = self._buffers.of_layer(layers[-1], total)
        qkv = layers[-1].split_qkv(own.qkv)
        return finish_last_layer(self._model, self.hidden[:total], qkv, attention)

    def _compute(self, step: PagedStep) -> Generator[torch.Tensor]:
        """Yield the input of the layer that a piece ends in, at the end of each piece."""
        layers, size = self._model.layers, self.inputs.size
        attention = self._attention.over(step)
        hidden = self._hidden_in
        if hidden is None:
            self.inputs.resolve_tokens()
            hidden = self._model.embed(step)
        for index, (layer, parts) in enumerate(zip(layers, self._attention.layers, strict=True)):
            buffers = self._buffers.of_layer(parts, size)
            qkv = attention.rotate_and_cache(index, layer.qkv(hidden), buffers.qkv)
            if self.inputs.rows is None or index == len(layers) - 1:
                yield hidden
            else:
                attention.attend(index, qkv, out=buffers.attended)
            if index < len(layers) - 1:
                hidden = layer.after_attention(hidden, buffers.attended)


_Graph = TypeVar("_Graph", bound=CapturedStep[StaticInputs])


@dataclass
class StageGraphs(Graphs):
    """The captured steps of a stage, each list by rising size.

    decode     a token a row, in rows; attention included
    grouped    the same, with prefixes that rows share attended once
    mixed      a few decode rows and a few chunks, in tokens; attention included
    piecewise  any rows, in tokens; attention is launched between the pieces
    """

    decode: list[DecodeGraph] = field(default_factory=list[DecodeGraph])
    grouped: list[DecodeGraph] = field(default_factory=list[DecodeGraph])
    mixed: list[PartialGraph] = field(default_factory=list[PartialGraph])
    piecewise: list[PartialGraph] = field(default_factory=list[PartialGraph])

    def select(self, rows: StepRows) -> DecodeGraph | PartialGraph | None:
        """The smallest graph that has room for a step of these rows. None to launch every kernel.

        A step with a skewed context takes no decode graph: captured attention splits contexts by
        the number of rows alone.
        """
        is_decode = len(rows.slots) == rows.total
        if is_decode and (grouped := self._grouped(rows)):
            return grouped
        if is_decode and min_splits(rows.contexts) == 1:
            return _smallest(self.decode, rows)
        return _smallest(self.mixed, rows) or _smallest(self.piecewise, rows)

    def _grouped(self, rows: StepRows) -> DecodeGraph | None:
        """The graph for rows some of which share a prefix that is worth it."""
        graph = _smallest(self.grouped, rows)
        if graph is None or graph.inputs.prefixes is None:
            return None
        tables = graph.inputs.prefixes.tables(rows)
        if tables is None or min_splits(rows.contexts - tables.starts) > 1:
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
    """The captured `rows` that are captured with shared prefixes, too. So few hardly delay the
    start. A few rows more cost less than attention saves."""
    return [
        count
        for count in rows
        if count in GROUPED_GRAPH_ROWS or count % DECODE_GRAPH_STRIDE == 0 or count == rows[-1]
    ]


def prompt_graph_sizes(max_tokens: int) -> list[int]:
    """Tokens of the steps with prompts to capture, rising, none above `max_tokens`."""
    return [tokens for tokens in PROMPT_GRAPH_TOKENS if tokens <= max_tokens]


class GraphCapture:
    _hidden: torch.Tensor | None = None
    """Input of a later stage. All graphs share it, as they do the buffers of attention."""

    def __init__(
        self,
        model: StageModel,
        attention: StageAttention,
        slots: SlotTable,
        prefix_tiler: PrefixTiler | None,
        dtype: torch.dtype,
    ) -> None:
        """With a `prefix_tiler` decode steps are captured once more, with room for shared
        prefixes. `dtype` is the model's."""
        self._model, self._attention, self._slots = model, attention, slots
        self._prefix_tiler, self._dtype = prefix_tiler, dtype
        self._pool = GraphPool()

    def capture(self, sizes: GraphSizes, hidden_like: torch.Tensor | None) -> StageGraphs:
        """Capture steps of these sizes. `hidden_like` [1, hidden_size] is a token's input of a
        later stage, None on the first stage."""
        graphs, tiler = StageGraphs(), self._prefix_tiler
        tokens = max([0, *sizes["mixed"], *sizes["piecewise"]])
        if hidden_like is not None:
            most = max([tokens, *sizes["decode"], *sizes["grouped"]])
            # Rows that differ, as the tokens of a first stage do before it has inputs.
            self._hidden = hidden_like.new_empty(most, hidden_like.shape[1]).normal_()
        self._buffers = AttentionBuffers.of(self._attention.layers, tokens, self._dtype)
        graphs.capture(
            sizes,
            {
                "piecewise": self._capture_prompts,
                "mixed": lambda size: self._capture_prompts(size, self._static_rows(size)),
                "decode": self._capture_decode,
                "grouped": lambda size: self._capture_decode(size, tiler),
            },
        )
        return graphs

    def _capture_decode(self, size: int, tiler: PrefixTiler | None = None) -> DecodeGraph:
        prefixes = StaticPrefixes(size, tiler) if tiler else None
        inputs = StaticInputs(size, self._slots, prefixes=prefixes)
        graph = DecodeGraph(inputs, self._model, self._attention, self._hidden_in(size))
        return graph.capture(self._pool)

    def _capture_prompts(self, size: int, rows: StaticRows | None = None) -> PartialGraph:
        inputs = StaticInputs(size, self._slots, rows)
        graph = PartialGraph(inputs, self._model, self._attention, self._hidden_in(size))
        return graph.capture(self._pool, self._buffers)

    def _hidden_in(self, size: int) -> torch.Tensor | None:
        return None if self._hidden is None else self._hidden[:size]

    def _static_rows(self, size: int) -> StaticRows:
        max_context = self._slots.max_blocks * self._slots.block_size
        return StaticRows(min(MIXED_GRAPH_DECODE_ROWS, size), MIXED_GRAPH_CHUNKS, max_context)
