"""CUDA graphs of decode steps, whole: one launch in place of hundreds."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from workers.attention.stage_attention import StageAttention
from workers.graphs.static_inputs import StaticInputs
from workers.models.base import StageModel
from workers.models.layer_loop import forward
from workers.step.tensors import StepTensors


class GraphPool:
    """One memory pool for all graphs of a stage, of which only one runs at a time, and the stream
    on which they are captured. Largest first: the others fit into what it took."""

    def __init__(self) -> None:
        # Graphs of a runner before this one, freed while another is captured, would spoil that.
        gc.collect()
        self._handle = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Around every `begin`: nothing else is under way on the device."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def begin(self) -> torch.cuda.CUDAGraph:
        """A graph that captures what follows, until its `capture_end`."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._handle)
        return graph


@dataclass(frozen=True, slots=True)
class FullGraph:
    """A captured step of `inputs.size` rows of one token each."""

    inputs: StaticInputs
    step: StepTensors
    hidden_in: torch.Tensor | None
    hidden_out: torch.Tensor
    graph: torch.cuda.CUDAGraph

    def run(self, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay it over what its inputs were loaded with; the result holds until the next one."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in[: len(hidden)] = hidden
        self.graph.replay()
        return self.hidden_out

    def replay(self) -> None:
        """Replay it over what its inputs hold."""
        self.graph.replay()


def capture_full_graph(
    inputs: StaticInputs,
    model: StageModel,
    attention: StageAttention,
    hidden_in: torch.Tensor | None,
    pool: GraphPool,
) -> FullGraph:
    """Capture a step whose rows are the tokens of `inputs`.

    `hidden_in` [size, hidden_size] is where a later stage finds what the one before sent.
    """
    step = inputs.as_decode_step()

    def run() -> torch.Tensor:
        inputs.resolve_tokens()
        return forward(model, step, hidden_in, attention.of(step))

    run()  # compiles what is not yet: a capture must not
    with pool.capturing():
        graph = pool.begin()
        hidden_out = run()
        graph.capture_end()
    return FullGraph(inputs, step, hidden_in, hidden_out, graph)
