"""StepInput -> tensors: computed flat with NumPy on the CPU, then sent to the device at once."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.cuda_graphs import DecodeGraph
from workers.layers.linear import MIN_CPU_ROWS
from workers.messages import StepInput
from workers.prompt_graphs import PromptGraph
from workers.sampling.parameters import SamplingRows, SamplingTable
from workers.slots import SlotTable
from workers.stage_graphs import StageGraphs
from workers.step_rows import LongArray, StepRows, offsets
from workers.step_tensors import Ends, IntArray, StepTensors
from workers.transfer import on_device, to_device


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The S rows of a step that sample.

    positions int64[S] on the device: where their last tokens are among the step's T, None where
    the final hidden states begin with theirs. `width` is the most alternatives that any of them
    reports, -1 for no log-probabilities.
    """

    positions: torch.Tensor | None
    slots: IntArray
    rows: SamplingRows
    width: int


@dataclass(frozen=True, slots=True)
class ScoringInput:
    """The N positions of a step whose next token is scored (int64[N] each, on the device).

    `width` is the most alternatives that any row of the step reports beside a prompt token.
    """

    positions: torch.Tensor
    targets: torch.Tensor
    width: int


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step as a stage runs it; `sampling` and `scoring` where the step has any, `graph` where
    it is captured and its inputs are loaded: T' is then the graph's size. `told` int64, where rows
    are told token by token, are the places of what is told in (R pooled vectors, T states)."""

    step: int
    tensors: StepTensors
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None
    graph: DecodeGraph | PromptGraph | None = None
    told: torch.Tensor | None = None


class EncoderInputBuilder:
    """Steps of whole texts: every row starts at position 0, nothing is remembered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def build(self, message: StepInput) -> ModelInput:
        """The step's tensors on the device."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)
        query_starts = offsets(query_lens)
        total = int(query_starts[-1])
        padded = _padded(total, self._device)
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
            slot_mapping=None,
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
        self._sampling = sampling
        self._block_size = block_size
        self._device = device
        self._first = first

    def build(self, message: StepInput) -> ModelInput:
        """Apply the message's slot changes and make the step's tensors on the device."""
        self._slots.update(message.block_updates)
        rows = StepRows.of(message)
        graph = self.graphs.fitting(rows) if self.graphs else None
        tensors = self._load(message, rows, graph) if graph else self._tensors(message, rows)
        if self._sampling is None:
            return ModelInput(message.step, tensors, graph=graph)
        self._sampling.update(message.inits)
        scoring = _scoring_input(self._sampling, rows.slots, message.targets, self._device)
        sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
        positions = None
        if scoring is not None or isinstance(graph, DecodeGraph):
            if len(sampled) < rows.total:
                positions = on_device(rows.ends[sampled], self._device)
        elif len(sampled) < rows.total:
            tensors = replace(tensors, ends=_ends(tensors, rows, sampled, self._device))
        sampling = _sampling_input(self._sampling, rows, sampled, positions)
        return ModelInput(message.step, tensors, sampling, scoring, graph)

    def _load(
        self, message: StepInput, rows: StepRows, graph: DecodeGraph | PromptGraph
    ) -> StepTensors:
        """Load the graph with the step's tokens; its rows are the graph's, or come along."""
        tokens = np.frombuffer(message.tokens, np.int32)
        slots, positions = rows.slots[rows.of_token], rows.positions
        graph.inputs.load(tokens, positions, self._places(slots, positions), slots, rows)
        if isinstance(graph, DecodeGraph):
            return graph.step
        own, starts, lens = to_device([rows.slots, rows.starts, rows.contexts], self._device)
        return StepTensors(
            tokens=graph.inputs.tokens[: rows.total],
            positions=graph.inputs.positions[: rows.total],
            token_types=None,
            slot_mapping=graph.inputs.slot_mapping[: rows.total],
            block_tables=self._slots.device_tables,
            slots=own,
            query_starts=starts,
            context_lens=lens,
            query_lens=rows.query_lens,
            contexts=rows.contexts,
        )

    def _tensors(self, message: StepInput, rows: StepRows) -> StepTensors:
        """The step's tokens and rows, for launching it kernel by kernel."""
        total, padded = rows.total, _padded(rows.total, self._device)
        slots, positions = rows.slots[rows.of_token], rows.positions
        tokens = _widened(message.tokens, np.int32, padded)
        pending = np.flatnonzero(tokens[: total if self._first else 0] < 0)
        arrays = [
            tokens,
            _lengthened(positions, padded),
            self._places(slots, positions),
            rows.slots,
            rows.starts,
            rows.contexts,
        ]
        if len(pending):
            arrays += [pending, slots[pending]]
        ids, placed, mapping, own, starts, lens, *ahead = to_device(arrays, self._device)
        if ahead:
            pending_tokens, their_slots = ahead
            ids.index_copy_(0, pending_tokens, self._slots.last_tokens.index_select(0, their_slots))
        return StepTensors(
            tokens=ids,
            positions=placed,
            token_types=None,
            slot_mapping=mapping,
            block_tables=self._slots.device_tables,
            slots=own,
            query_starts=starts,
            context_lens=lens,
            query_lens=rows.query_lens,
            contexts=rows.contexts,
        )

    def _places(self, slots: IntArray, positions: LongArray) -> LongArray:
        """Where the cache holds a position of a slot's sequence: int64, block * size + offset."""
        index, offset = np.divmod(positions, self._block_size)
        return self._slots.block_tables[slots, index] * np.int64(self._block_size) + offset


def _ends(
    step: StepTensors, rows: StepRows, sampled: npt.NDArray[np.intp], device: torch.device
) -> Ends:
    """The last tokens of these rows."""
    count = len(sampled)
    places = rows.ends[sampled]
    contexts = rows.contexts[sampled]
    arrays = [
        _lengthened(places, _padded(count, device)) if count else places,
        rows.slots[sampled],
        contexts,
        np.arange(count + 1, dtype=np.int32),
    ]
    positions, slots, lens, starts = to_device(arrays, device)
    alone = replace(
        step,
        slots=slots,
        query_starts=starts,
        context_lens=lens,
        query_lens=np.ones(count, np.int32),
        contexts=contexts,
    )
    return Ends(positions, alone)


def _sampling_input(
    table: SamplingTable,
    rows: StepRows,
    sampled: npt.NDArray[np.intp],
    positions: torch.Tensor | None,
) -> SamplingInput | None:
    """Of the rows `sampled`, if there are any."""
    if not len(sampled):
        return None
    own = rows.slots[sampled]
    return SamplingInput(
        positions=positions,
        slots=own,
        rows=table.rows(own, rows.contexts[sampled]),
        width=table.sampled_width(own),
    )


def _scoring_input(
    table: SamplingTable, slots: IntArray, targets: bytes, device: torch.device
) -> ScoringInput | None:
    following = np.frombuffer(targets, np.int32)
    scored = np.flatnonzero(following >= 0)
    if not len(scored):
        return None
    where, tokens = to_device([scored, following[scored].astype(np.int64)], device)
    return ScoringInput(where, tokens, table.scored_width(slots))


def _padded(total: int, device: torch.device) -> int:
    return max(total, MIN_CPU_ROWS) if device.type == "cpu" else total


def _widened(data: bytes, dtype: type[np.generic], padded: int) -> LongArray:
    """`data` as int64[padded], filled up with zeros."""
    return _lengthened(np.frombuffer(data, dtype), padded)


def _lengthened(values: npt.NDArray[Any], padded: int) -> LongArray:
    """The same as int64[padded], filled up with zeros."""
    wide = np.zeros(padded, np.int64)
    wide[: len(values)] = values
    return wide
