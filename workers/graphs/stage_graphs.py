"""The CUDA graphs of a stage: which are captured and kept, and which one a decoder's step takes.

A full graph is a whole decode step. A partial graph is a step with prompts, captured up to the
attention of the last layer, which serves any step of fewer tokens too. What follows is a few
launches over any number of the step's tokens.

A piecewise graph leaves attention out, which depends on how tokens are divided into rows: each of
its pieces ends at a layer's attention. Everything else depends on the tokens' number alone. A mixed
graph has static rows, and is a single piece with all attention but the last layer's.
"""

import gc
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self, TypeVar

import torch

from workers.attention.backends.triton import min_splits
from workers.attention.prefix_tiles import PrefixTiler
from workers.attention.stage_attention import LayerAttention, StageAttention
from workers.device.timing import Stopwatch
from workers.device.tuning import (
    CLEARLY_FASTER,
    DECODE_GRAPH_ROWS,
    DECODE_GRAPH_STRIDE,
    GROUPED_GRAPH_ROWS,
    MIXED_GRAPH_CHUNKS,
    MIXED_GRAPH_DECODE_ROWS,
    PROMPT_GRAPH_TOKENS,
)
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes, StaticRows
from workers.models.base import StageModel, finish_last_layer, forward
from workers.progress_bar import progress
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable


class GraphPool:
    """One memory pool and one stream for all graphs of a stage, of which one runs at a time. The
    largest is captured first: the others fit into its memory."""

    def __init__(self) -> None:
        # Frees the graphs of an earlier runner: freeing them during a capture would invalidate it.
        gc.collect()
        self._handle = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Surround every `begin`: nothing else runs on the device meanwhile."""
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
        [size, hidden_size]."""
        self._receive(hidden)
        self.replay()
        return self._hidden_out

    def _compute(self) -> torch.Tensor:
        if self._hidden_in is None:
            self.inputs.resolve_tokens()
        return forward(self._model, self.step, self._hidden_in, self._attention.over(self.step))


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
    def of(cls, layers: Sequence[LayerAttention], size: int) -> Self:
        """For steps of at most `size` tokens."""
        like, keys = layers[0].own_cache.keys.new_zeros, [each.own_cache.keys for each in layers]
        dims = [own.shape[-1] for own in keys]
        heads = [each.counts[0] for each in layers]
        both = [heads + 2 * each.counts[1] for heads, each in zip(heads, layers, strict=True)]
        widths = (max(map(int.__mul__, counts, dims)) for counts in (both, heads))
        return cls(*(like(size * width) for width in widths))

    def of_layer(self, layer: LayerAttention, size: int) -> "LayerBuffers":
        """Those of `size` tokens in a layer."""
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


class PartialGraph(CapturedStep):
    """A captured step of `inputs.size` tokens: mixed if `inputs.rows` are given, else piecewise."""

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


_Graph = TypeVar("_Graph", bound=CapturedStep)
_AnyGraph = TypeVar("_AnyGraph")


@dataclass
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

    def sizes(self) -> "GraphSizes":
        kinds: dict[str, list[CapturedStep]] = vars(self)
        return {kind: [graph.inputs.size for graph in own] for kind, own in kinds.items()}

    def drop_slow(self, watch: Stopwatch) -> None:
        """Keep those that no larger graph of their kind clearly outruns."""
        for kind, graphs in vars(self).items():
            setattr(self, kind, without_slow(graphs, lambda graph: watch.seconds(graph.replay)))

    def _grouped(self, rows: StepRows) -> FullGraph | None:
        """The graph for rows some of which share a prefix that is worth it."""
        graph = _smallest(self.grouped, rows)
        if graph is None or graph.inputs.prefixes is None:
            return None
        tables = graph.inputs.prefixes.tables(rows)
        if tables is None or min_splits(rows.contexts - tables.starts) > 1:
            return None
        return graph


GraphSizes = dict[str, list[int]]
"""The sizes of the graphs of each kind of `StageGraphs`, rising."""


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
    ) -> None:
        """With a `prefix_tiler` decode steps are captured once more, with room for shared
        prefixes."""
        self._model, self._attention, self._slots = model, attention, slots
        self._prefix_tiler = prefix_tiler
        self._pool = GraphPool()

    def capture(self, sizes: GraphSizes, hidden_like: torch.Tensor | None) -> StageGraphs:
        """Capture steps of these sizes. `hidden_like` [1, hidden_size] is a token's input of a
        later stage, None on the first stage."""
        graphs, tiler = StageGraphs(), self._prefix_tiler
        tokens = max([0, *sizes["mixed"], *sizes["piecewise"]])
        if hidden_like is not None:
            most = max([tokens, *sizes["decode"], *sizes["grouped"]])
            self._hidden = hidden_like.expand(most, -1).contiguous()
        self._buffers = AttentionBuffers.of(self._attention.layers, tokens)
        kinds: dict[str, Callable[[int], None]] = {
            "piecewise": lambda size: self._capture_prompts(size, graphs.piecewise),
            "mixed": lambda size: self._capture_prompts(
                size, graphs.mixed, self._static_rows(size)
            ),
            "decode": lambda size: self._capture_decode(size, graphs.decode),
            "grouped": lambda size: self._capture_decode(size, graphs.grouped, tiler),
        }
        captures = [
            partial(capture, size)
            for kind, capture in kinds.items()
            for size in reversed(sizes[kind])
        ]
        for capture in progress("capturing CUDA graphs", captures, len(captures)):
            capture()
        return graphs

    def _capture_decode(
        self, size: int, graphs: list[FullGraph], tiler: PrefixTiler | None = None
    ) -> None:
        prefixes = StaticPrefixes(size, tiler) if tiler else None
        inputs = StaticInputs(size, self._slots, prefixes=prefixes)
        graph = FullGraph(inputs, self._model, self._attention, self._hidden_in(size))
        graphs.insert(0, graph.capture(self._pool))

    def _capture_prompts(
        self, size: int, graphs: list[PartialGraph], rows: StaticRows | None = None
    ) -> None:
        inputs = StaticInputs(size, self._slots, rows)
        graph = PartialGraph(inputs, self._model, self._attention, self._hidden_in(size))
        graphs.insert(0, graph.capture(self._pool, self._buffers))

    def _hidden_in(self, size: int) -> torch.Tensor | None:
        return None if self._hidden is None else self._hidden[:size]

    def _static_rows(self, size: int) -> StaticRows:
        max_context = self._slots.max_blocks * self._slots.block_size
        return StaticRows(min(MIXED_GRAPH_DECODE_ROWS, size), MIXED_GRAPH_CHUNKS, max_context)


def without_slow(
    graphs: Sequence[_AnyGraph], measure: Callable[[_AnyGraph], float]
) -> list[_AnyGraph]:
    """The `graphs`, by rising size, without those that a larger one clearly outruns.

    Products by libraries are much slower for some numbers of rows than for slightly more. On an
    H200, 448 tokens of an 8B Llama take 15 ms, and 512 take 12 ms.
    """
    kept: list[_AnyGraph] = []
    fastest = math.inf
    for graph in reversed(graphs):
        taken = measure(graph)
        if fastest > CLEARLY_FASTER * taken:
            kept.insert(0, graph)
        fastest = min(fastest, taken)
    return kept
