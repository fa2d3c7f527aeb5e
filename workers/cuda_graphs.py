"""CUDA graphs of decode steps: one launch in place of hundreds.

A graph is captured for each of a ladder of row counts, all over the same memory pool; a step takes
the smallest that holds its rows, and rows of nobody's slot fill it up.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workers.progress import ProgressBar
from workers.slots import SlotTable
from workers.step_tensors import IntArray, StepTensors
from workers.transfer import stage

Forward = Callable[[StepTensors, torch.Tensor | None], torch.Tensor]
"""(step, hidden states of the stage before or None) -> hidden states [T', hidden_size]."""

_logger = logging.getLogger(__name__)


def row_ladder(max_rows: int) -> list[int]:
    """Row counts to capture: every one while it is cheap, then steps that waste little."""
    fine = [1, 2, 3, 4, 6, 8, 12, *range(16, 64, 8), *range(64, 256, 16), *range(256, 513, 32)]
    coarse = range(576, max_rows + 64, 64)
    ladder = [rows for rows in (*fine, *coarse) if rows < max_rows]
    return [*ladder, max_rows]


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """A captured step of `rows` rows of one token each.

    Its inputs are views of one buffer, so that a step arrives in one copy: tokens, positions and
    slot_mapping int64[rows], slots and context_lens int32[rows].
    """

    rows: int
    inputs: torch.Tensor
    step: StepTensors
    hidden_in: torch.Tensor | None
    hidden_out: torch.Tensor
    graph: torch.cuda.CUDAGraph

    def run(self, hidden: torch.Tensor | None) -> torch.Tensor:
        """Replay it over what `DecodeGraphs.load` put in; the result holds until the next one."""
        if self.hidden_in is not None:
            assert hidden is not None, "a later stage gets the hidden states of the one before"
            self.hidden_in.copy_(hidden)
        self.graph.replay()
        return self.hidden_out


class DecodeGraphs:
    """The graphs of one stage."""

    def __init__(self, slots: SlotTable, scratch_place: int, device: torch.device) -> None:
        """`scratch_place` is a place in the KV cache (block * block_size) that nobody reads."""
        self._slots = slots
        self._scratch_place = scratch_place
        self._device = device
        self._graphs: list[DecodeGraph] = []

    def capture(
        self, ladder: Sequence[int], forward: Forward, hidden_like: torch.Tensor | None
    ) -> None:
        """Capture every step of the ladder, the largest first, so that the others fit its memory.

        `hidden_like` [1, hidden_size] is what a later stage receives a row, None for the first.
        """
        started, before = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        with ProgressBar("capturing CUDA graphs", len(ladder)) as progress:
            for rows in sorted(ladder, reverse=True):
                self._graphs.insert(0, self._capture(rows, forward, hidden_like))
                progress.advance()
        taken = before - torch.cuda.mem_get_info(self._device)[0]
        seconds = time.monotonic() - started
        _logger.info("%d CUDA graphs: %.1f s, %d MiB", len(ladder), seconds, taken >> 20)

    def fitting(self, rows: int) -> DecodeGraph | None:
        """The smallest graph for so many rows, None if there is none."""
        index = bisect_left(self._graphs, rows, key=lambda graph: graph.rows)
        return self._graphs[index] if index < len(self._graphs) else None

    def load(
        self,
        graph: DecodeGraph,
        tokens: IntArray,
        positions: IntArray,
        slot_mapping: npt.NDArray[np.int64],
        slots: IntArray,
    ) -> None:
        """Queue the copy of a step's rows into the graph's inputs; they are int[R], R <= rows."""
        count = len(slots)
        wide = np.zeros((3, graph.rows), np.int64)
        wide[0, :count], wide[1, :count] = tokens, positions
        wide[2] = self._scratch_place
        wide[2, :count] = slot_mapping
        narrow = np.empty((2, graph.rows), np.int32)
        narrow[0] = self._slots.padding_slot
        narrow[0, :count] = slots
        narrow[1] = wide[1] + 1
        graph.inputs.copy_(stage([wide, narrow]), non_blocking=True)

    def _capture(
        self, rows: int, forward: Forward, hidden_like: torch.Tensor | None
    ) -> DecodeGraph:
        inputs = torch.zeros(rows * 32, dtype=torch.uint8, device=self._device)
        tokens, positions, slot_mapping = inputs[: rows * 24].view(torch.int64).view(3, rows)
        slots, context_lens = inputs[rows * 24 :].view(torch.int32).view(2, rows)
        slots.fill_(self._slots.padding_slot)
        slot_mapping.fill_(self._scratch_place)
        context_lens.fill_(1)
        step = StepTensors(
            tokens=torch.zeros_like(tokens),
            positions=positions,
            token_types=None,
            slot_mapping=slot_mapping,
            block_tables=self._slots.device_tables,
            slots=slots,
            query_starts=torch.arange(rows + 1, dtype=torch.int32, device=self._device),
            context_lens=context_lens,
            query_lens=np.ones(rows, np.int32),
            contexts=np.ones(rows, np.int32),
        )
        hidden_in = None if hidden_like is None else hidden_like.expand(rows, -1).contiguous()

        def run() -> torch.Tensor:
            last = self._slots.last_tokens.index_select(0, slots)
            torch.where(tokens < 0, last, tokens, out=step.tokens)
            return forward(step, hidden_in)

        run()  # compiles what is not yet: a capture must not
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        pool = self._graphs[0].graph.pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            hidden_out = run()
        return DecodeGraph(rows, inputs, step, hidden_in, hidden_out, graph)
