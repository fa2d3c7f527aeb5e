"""Which steps of a stage are captured in CUDA graphs, and which graph a step takes."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from workers.attention.attend import StepAttention
from workers.attention.base import AttentionBackend, LayerCache
from workers.cuda_graphs import DecodeGraph, GraphPool, capture_decode
from workers.models.base import Attend
from workers.piecewise_graphs import PieceCapture, PiecewiseGraph
from workers.progress import ProgressBar
from workers.slots import SlotTable
from workers.static_inputs import StaticInputs
from workers.step_tensors import StepTensors

RunLayers = Callable[[StepTensors, torch.Tensor | None, Attend], torch.Tensor]
"""`StageModel.forward`"""

_logger = logging.getLogger(__name__)


def row_ladder(max_rows: int) -> list[int]:
    """Decode steps to capture, by rows: every one while it is cheap, then such as waste little."""
    fine = [1, 2, 3, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 256, 16), *range(256, 513, 32)]
    coarse = range(576, max_rows + 64, 64)
    return [*(rows for rows in (*fine, *coarse) if rows < max_rows), max_rows]


def token_ladder(max_tokens: int) -> list[int]:
    """Other steps to capture, by tokens. Those of more keep the GPU busy for longer than it takes
    to launch their kernels one by one."""
    return [
        tokens for tokens in (*range(16, 257, 16), *range(288, 513, 32)) if tokens <= max_tokens
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
        self,
        run_layers: RunLayers,
        backend: AttentionBackend,
        caches: list[LayerCache],
        head_counts: tuple[int, int],
        slots: SlotTable,
        scratch_place: int,
    ) -> None:
        """`scratch_place` is a place in the KV cache that nobody reads."""
        self._run_layers, self._backend, self._caches = run_layers, backend, caches
        self._head_counts, self._slots, self._scratch_place = head_counts, slots, scratch_place
        self._pool = GraphPool()

    def capture(
        self, rows: list[int], tokens: list[int], hidden_like: torch.Tensor | None
    ) -> StageGraphs:
        """Capture these, the largest first. `hidden_like` [1, hidden_size] is what a later stage
        receives a token, None for the first."""
        started, before = time.monotonic(), torch.cuda.mem_get_info()[0]
        graphs = StageGraphs()
        with ProgressBar("capturing CUDA graphs", len(rows) + len(tokens)) as progress:
            for size in sorted(tokens, reverse=True):
                graphs.pieces.insert(0, self._capture_pieces(size, _widened(hidden_like, size)))
                progress.advance()
            for size in sorted(rows, reverse=True):
                graphs.decodes.insert(0, self._capture_decode(size, _widened(hidden_like, size)))
                progress.advance()
        taken = (before - torch.cuda.mem_get_info()[0]) >> 20
        seconds = time.monotonic() - started
        _logger.info("%d steps in CUDA graphs: %.1f s, %d MiB", progress.done, seconds, taken)
        return graphs

    def _capture_decode(self, size: int, hidden_in: torch.Tensor | None) -> DecodeGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_place)

        def forward(step: StepTensors, hidden: torch.Tensor | None) -> torch.Tensor:
            attend = StepAttention(self._backend, step, self._head_counts, self._caches)
            return self._run_layers(step, hidden, attend)

        return capture_decode(inputs, forward, hidden_in, self._pool)

    def _capture_pieces(self, size: int, hidden_in: torch.Tensor | None) -> PiecewiseGraph:
        inputs = StaticInputs(size, self._slots, self._scratch_place)
        step = inputs.as_decode_step()
        keys = self._caches[0].keys
        attended = keys.new_zeros(size, self._head_counts[0], keys.shape[-1])

        def forward(attend: Attend) -> torch.Tensor:
            inputs.resolve_tokens(step.tokens)
            return self._run_layers(step, hidden_in, attend)

        capture = PieceCapture(self._backend, self._caches, self._head_counts, self._pool)
        return capture.capture(inputs, forward, attended, hidden_in)


def _widened(hidden_like: torch.Tensor | None, size: int) -> torch.Tensor | None:
    return None if hidden_like is None else hidden_like.expand(size, -1).contiguous()
