"""CUDA graphs of steps of any kind: how they are captured, which are kept, and their replay."""

import gc
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, Self, TypeVar

import torch

from workers.attention.stage_attention import StageAttention
from workers.device.timing import Stopwatch
from workers.device.tuning import CLEARLY_FASTER
from workers.layers.layer import Placement
from workers.models.base import StageModel, forward
from workers.progress_bar import progress
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

GraphSizes = dict[str, list[int]]
"""The sizes of the graphs of each kind of `Graphs`, rising."""

_logger = logging.getLogger(__name__)


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


class Inputs(Protocol):
    """Inputs of captured steps of `size` tokens, at fixed addresses."""

    size: int

    @property
    def step(self) -> PagedStep | PackedStep:
        """The step over all of them. Captured kernels read its lengths on the device: those on the
        host are made up."""
        ...

    def resolve_tokens(self) -> None:
        """Fill in what is looked up as part of what is captured."""
        ...


InputsT_co = TypeVar("InputsT_co", bound=Inputs, covariant=True)
GraphsT = TypeVar("GraphsT", bound="Graphs")
_AnyGraph = TypeVar("_AnyGraph")


class CapturedStep(Generic[InputsT_co]):
    """A captured step of a stage over `inputs`, in pieces.

    The first stage looks tokens up; a later one reads `hidden_in` [size, state_size], which the
    stage before has sent.
    """

    def __init__(
        self,
        inputs: InputsT_co,
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
        """Take the hidden states [T, state_size], T <= size, of the stage before."""
        if self._hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self._hidden_in[: len(hidden)] = hidden


class FullGraph(CapturedStep[InputsT_co]):
    """A captured step with all layers and their attention."""

    hidden_out: torch.Tensor | None = None
    """Memory for the result, which graphs may share. Without it, it is in the pool, and held."""

    def capture(self, pool: GraphPool) -> Self:
        """Run the step once, which compiles its kernels outside of a capture, then capture it."""
        self._compute()
        with pool.capturing():
            self.pieces.append(pool.begin())
            self._result = self._compute()
            self.pieces[0].capture_end()
        return self

    def run(self, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay the step over its loaded inputs. The next replay overwrites the result, which is
        as long as that of `forward`."""
        self._receive(hidden)
        self.replay()
        return self._result

    def launch_seconds(self) -> float:
        """Seconds in which the host launches the step's kernels one by one."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._compute()
        return time.perf_counter() - started

    def _compute(self) -> torch.Tensor:
        if self._hidden_in is None:
            self.inputs.resolve_tokens()
        step = self.inputs.step
        result = forward(self._model, step, self._hidden_in, self._attention.over(step))
        return result if self.hidden_out is None else self.hidden_out[: len(result)].copy_(result)


class Graphs:
    """The captured steps of a stage, a list of each kind by rising size, which are all attributes
    of a subclass."""

    @property
    def _kinds(self) -> dict[str, list[CapturedStep[Inputs]]]:
        return vars(self)

    def sizes(self) -> GraphSizes:
        return {kind: [graph.inputs.size for graph in own] for kind, own in self._kinds.items()}

    def capture(
        self, sizes: GraphSizes, capture: Mapping[str, Callable[[int], CapturedStep[Inputs]]]
    ) -> None:
        """Capture steps of these sizes, kind by kind, the largest first."""
        each = [(kind, size) for kind in capture for size in reversed(sizes[kind])]
        for kind, size in progress("capturing CUDA graphs", each, len(each)):
            self._kinds[kind].insert(0, capture[kind](size))

    def drop_slow(self, watch: Stopwatch) -> None:
        """Keep those that are worth it, and that no larger graph of their kind clearly outruns."""
        most = self._most_seconds()
        for kind, graphs in self._kinds.items():
            self._kinds[kind] = without_slow(
                graphs, lambda graph: watch.seconds(graph.replay), most
            )

    def _most_seconds(self) -> float:
        """A step that takes as long, or longer, is as fast without a graph."""
        return math.inf


def without_slow(
    graphs: Sequence[_AnyGraph], measure: Callable[[_AnyGraph], float], most: float = math.inf
) -> list[_AnyGraph]:
    """The `graphs`, by rising size, that take less than `most` seconds, without those that a larger
    one of these clearly outruns.

    Products by libraries are much slower for some numbers of rows than for slightly more. On an
    H200, 448 tokens of an 8B Llama take 15 ms, and 512 take 12 ms.
    """
    kept: list[_AnyGraph] = []
    fastest = math.inf
    for graph in reversed(graphs):
        if (taken := measure(graph)) >= most:
            continue
        if fastest > CLEARLY_FASTER * taken:
            kept.insert(0, graph)
        fastest = min(fastest, taken)
    return kept


def captured(
    capture: Callable[[GraphSizes], GraphsT],
    sizes: GraphSizes,
    attention: StageAttention,
    placement: Placement,
    shape: object,
) -> GraphsT:
    """Capture all steps of these `sizes`, and keep those graphs that are worth it.

    If that was chosen before, for such attention and a model of this `shape`, only these are
    captured."""
    started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
    graphs: GraphsT | None = None

    def measure(watch: Stopwatch) -> GraphSizes:
        nonlocal graphs
        graphs = capture(sizes)
        graphs.drop_slow(watch)
        return graphs.sizes()

    backends = sorted({layer.backend.label for layer in attention.layers})
    chosen = placement.choices.get(
        "CUDA graphs", GraphSizes, measure, placement.device, shape, backends
    )
    if graphs is None or graphs.sizes() != chosen:
        graphs = capture(chosen)
    taken, seconds = free - torch.cuda.mem_get_info()[0], time.monotonic() - started
    kinds = ", ".join(f"{len(own)} {kind}" for kind, own in chosen.items() if own)
    _logger.info("CUDA graphs: %s; %.1f s, %d MiB", kinds, seconds, taken >> 20)
    return graphs
