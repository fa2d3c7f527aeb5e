"""CUDA graphs of whole decode steps: one launch instead of hundreds."""

from dataclasses import dataclass

import torch

from workers.attention.stage_attention import StageAttention
from workers.graphs.graph_pool import GraphPool
from workers.graphs.static_inputs import StaticInputs
from workers.models.base import StageModel, forward
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class FullGraph:
    """A captured decode step of `inputs.size` rows of one token each.

    `hidden_in` and `hidden_out` are [size, hidden_size]; the first stage has no `hidden_in`.
    """

    inputs: StaticInputs
    step: PagedStep
    hidden_in: torch.Tensor | None
    hidden_out: torch.Tensor
    graph: torch.cuda.CUDAGraph

    def run(self, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay the step over its loaded inputs; the next replay overwrites the result.

        `hidden` [T, hidden_size], T <= size, comes from the stage before.
        """
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in[: len(hidden)] = hidden
        self.graph.replay()
        return self.hidden_out

    def replay(self) -> None:
        """Replay the step over whatever its inputs hold."""
        self.graph.replay()


def capture_full_graph(
    inputs: StaticInputs,
    model: StageModel,
    attention: StageAttention,
    hidden_in: torch.Tensor | None,
    pool: GraphPool,
) -> FullGraph:
    """Capture a step with a row for each token of `inputs`.

    A later stage reads `hidden_in` [size, hidden_size], which the stage before has sent, and no
    tokens.
    """
    step = inputs.as_decode_step()

    def run() -> torch.Tensor:
        if hidden_in is None:
            inputs.resolve_tokens()
        return forward(model, step, hidden_in, attention.paged(step))

    run()  # Compiles kernels, which must not happen within a capture.
    with pool.capturing():
        graph = pool.begin()
        hidden_out = run()
        graph.capture_end()
    return FullGraph(inputs, step, hidden_in, hidden_out, graph)
