"""StepInput -> tensors: computed flat with NumPy on the CPU, then sent to the device at once."""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from workers.contract.messages import StepInput
from workers.device.transfer import to_device
from workers.graphs.full_graph import FullGraph
from workers.graphs.graph_selection import StageGraphs
from workers.graphs.piecewise_graph import PiecewiseGraph
from workers.heads.requested_outputs import Ask, Wanted, Wants
from workers.sampling.sampling_table import SamplingTable
from workers.step.padding import lengthened, padded_count
from workers.step.rows import LongArray, StepRows, offsets
from workers.step.slot_table import SlotTable
from workers.step.tensors import IntArray, StepTensors


@dataclass(frozen=True)
class ModelInput:
    """One step as a stage runs it; `graph` where it is captured and its inputs are loaded: T' is
    then the graph's size. `told` int64, where rows are told token by token, are the places of what
    is told in (R pooled vectors, T states). `ask` makes what is wanted of a last stage."""

    step: int
    tensors: StepTensors
    graph: FullGraph | PiecewiseGraph | None = None
    told: torch.Tensor | None = None
    ask: Ask = Wanted

    @cached_property
    def wanted(self) -> Wanted:
        """What the last stage is asked for. To be read before the next step is built."""
        return self.ask()


class EncoderInputBuilder:
    """Steps of whole texts: every row starts at position 0, nothing is remembered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def build(self, message: StepInput) -> ModelInput:
        """The step's tensors on the device."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)
        query_starts = offsets(query_lens)
        total = int(query_starts[-1])
        padded = padded_count(total, self._device)
        positions = np.zeros(padded, np.int64)
        positions[:total] = np.arange(total) - np.repeat(query_starts[:-1], query_lens)
        arrays = [_widened(message.tokens, np.int32, padded), positions, query_starts, query_lens]
        if message.token_types:
            arrays.append(_widened(message.token_types, np.uint8, padded))
        tokens, placed, starts, lens, *types = to_device(arrays, self._device)
        tensors = StepTensors(
            tokens=tokens,
            positions=placed,
            token_types=types[0] if types else None,
            kv_indices=None,
            block_tables=None,
            slots=None,
            query_starts=starts,
            context_lens=lens,
            query_lens=query_lens,
            contexts=query_lens,
        )
        return ModelInput(message.step, tensors, told=self._told(message.states, query_starts))

    def _told(self, states: bytes, starts: IntArray) -> torch.Tensor | None:
        if not states:
            return None
        count = len(states)
        pieces = [
            np.arange(starts[row], starts[row + 1], dtype=np.int64) + count
            if told
            else np.array([row], np.int64)
            for row, told in enumerate(states)
        ]
        (places,) = to_device([np.concatenate(pieces)], self._device)
        return places


class DecoderInputBuilder:
    """Steps of rows that live in slots and keep their context in a paged cache.

    Only the first stage resolves tokens of -1; only the last samples and scores, and has `sampling`
    for it.
    """

    graphs: StageGraphs | None = None
    """Once captured, what steps are loaded into."""

    def __init__(
        self,
        slots: SlotTable,
        sampling: SamplingTable | None,
        block_size: int,
        device: torch.device,
        *,
        first: bool,
    ) -> None:
        self._slots = slots
        self._wants = Wants(sampling, device) if sampling is not None else None
        self._block_size = block_size
        self._device = device
        self._first = first

    def build(self, message: StepInput) -> ModelInput:
        """Apply the message's slot changes and make the step's tensors on the device."""
        self._slots.update(message.block_updates)
        rows = StepRows.of(message)
        graph = self.graphs.select(rows) if self.graphs else None
        tensors = self._load(message, rows, graph) if graph else self._tensors(message, rows)
        ask: Ask = Wanted
        if self._wants is not None:
            self._wants.begin(message.inits)
            states = isinstance(graph, FullGraph)
            ask = partial(self._wants.of, message, rows, tensors, all_states=states)
        return ModelInput(message.step, tensors, graph, ask=ask)

    def _load(
        self, message: StepInput, rows: StepRows, graph: FullGraph | PiecewiseGraph
    ) -> StepTensors:
        """Load the graph with the step's tokens; its rows are the graph's, or come along."""
        tokens = np.frombuffer(message.tokens, np.int32)
        graph.inputs.load(tokens, self._kv_indices(rows), rows)
        if isinstance(graph, FullGraph):
            return graph.step
        own, starts, lens = to_device([rows.slots, rows.starts, rows.contexts], self._device)
        return StepTensors(
            tokens=graph.inputs.tokens[: rows.total],
            positions=graph.inputs.positions[: rows.total],
            token_types=None,
            kv_indices=graph.inputs.kv_indices[: rows.total],
            block_tables=self._slots.device_tables,
            slots=own,
            query_starts=starts,
            context_lens=lens,
            query_lens=rows.query_lens,
            contexts=rows.contexts,
        )

    def _tensors(self, message: StepInput, rows: StepRows) -> StepTensors:
        """The step's tokens and rows, for launching it kernel by kernel."""
        total, padded = rows.total, padded_count(rows.total, self._device)
        tokens = _widened(message.tokens, np.int32, padded)
        ahead = self._first and bool((tokens < 0).any())
        arrays = [
            tokens,
            lengthened(rows.positions, padded),
            self._kv_indices(rows),
            rows.slots,
            rows.starts,
            rows.contexts,
        ]
        if ahead:
            arrays.append(rows.token_slots)
        ids, placed, mapping, own, starts, lens, *token_slots = to_device(arrays, self._device)
        if token_slots:
            self._slots.resolve(token_slots[0], ids[:total], ids[:total])
        return StepTensors(
            tokens=ids,
            positions=placed,
            token_types=None,
            kv_indices=mapping,
            block_tables=self._slots.device_tables,
            slots=own,
            query_starts=starts,
            context_lens=lens,
            query_lens=rows.query_lens,
            contexts=rows.contexts,
        )

    def _kv_indices(self, rows: StepRows) -> LongArray:
        """Where the cache holds each of the step's tokens: int64[T], block * size + offset."""
        index, offset = np.divmod(rows.positions, self._block_size)
        blocks = self._slots.block_tables[rows.token_slots, index]
        return blocks * np.int64(self._block_size) + offset


def _widened(data: bytes, dtype: type[np.generic], padded: int) -> LongArray:
    """`data` as int64[padded], filled up with zeros."""
    return lengthened(np.frombuffer(data, dtype), padded)
