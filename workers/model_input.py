"""StepInput -> tensors: computed flat with NumPy on the CPU, then sent to the device at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.cuda_graphs import DecodeGraph, DecodeGraphs
from workers.layers.linear import MIN_CPU_ROWS
from workers.messages import StepInput
from workers.sampling.parameters import SamplingRows, SamplingTable
from workers.slots import SlotTable
from workers.step_tensors import IntArray, StepTensors
from workers.transfer import on_device, to_device


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The S rows of a step that sample.

    positions int64[S] on the device: where their last tokens are among the step's T. `width` is the
    most alternatives that any of them reports, -1 for no log-probabilities.
    """

    positions: torch.Tensor
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
    it is captured and its inputs are loaded (`tensors` are then the graph's)."""

    step: int
    tensors: StepTensors
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None
    graph: DecodeGraph | None = None


class EncoderInputBuilder:
    """Steps of whole texts: every row starts at position 0, nothing is remembered."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def build(self, message: StepInput) -> ModelInput:
        """The step's tensors on the device."""
        query_lens = np.frombuffer(bytearray(message.query_lens), np.int32)
        query_starts = _offsets(query_lens)
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
        return ModelInput(message.step, tensors)


class DecoderInputBuilder:
    """Steps of rows that live in slots and keep their context in a paged cache.

    Only the first stage resolves tokens of -1; only the last samples and scores, and has `sampling`
    for it.
    """

    graphs: DecodeGraphs | None = None
    """Once captured, what steps of one token a row are loaded into."""

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
        slots = np.frombuffer(bytearray(message.slots), np.int32)  # torch wants it writable
        query_lens = np.frombuffer(message.query_lens, np.int32)
        contexts = np.frombuffer(message.starts, np.int32) + query_lens
        query_starts = _offsets(query_lens)
        graph = self._load_graph(message, slots, query_lens, contexts)
        if graph is not None:
            tensors = graph.step
        else:
            tensors = self._tensors(message, slots, query_lens, contexts, query_starts)
        if self._sampling is None:
            return ModelInput(message.step, tensors, graph=graph)
        self._sampling.update(message.inits)
        sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
        return ModelInput(
            message.step,
            tensors,
            _sampling_input(self._sampling, slots, contexts, query_starts, sampled, self._device),
            _scoring_input(self._sampling, slots, message.targets, self._device),
            graph,
        )

    def _load_graph(
        self, message: StepInput, slots: IntArray, query_lens: IntArray, contexts: IntArray
    ) -> DecodeGraph | None:
        """The graph that holds the step's rows, loaded; None where the step needs to be launched
        kernel by kernel."""
        if self.graphs is None or int(query_lens.max()) > 1:
            return None
        graph = self.graphs.fitting(len(slots))
        if graph is not None:
            positions = contexts - 1
            places = self._places(slots, positions)
            tokens = np.frombuffer(message.tokens, np.int32)
            self.graphs.load(graph, tokens, positions, places, slots)
        return graph

    def _places(
        self, slots: IntArray, positions: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int64]:
        """Where the cache holds a position of a slot's sequence: int64, block * size + offset."""
        index, offset = np.divmod(positions, self._block_size)
        return self._slots.block_tables[slots, index] * np.int64(self._block_size) + offset

    def _tensors(
        self,
        message: StepInput,
        slots: IntArray,
        query_lens: IntArray,
        contexts: IntArray,
        query_starts: IntArray,
    ) -> StepTensors:
        total = int(query_starts[-1])
        padded = _padded(total, self._device)
        row_of_token = np.repeat(np.arange(len(slots)), query_lens)
        positions = np.zeros(padded, np.int64)
        positions[:total] = (contexts - query_starts[1:])[row_of_token] + np.arange(total)
        slot_mapping = self._places(slots[row_of_token], positions[:total])
        tokens = _widened(message.tokens, np.int32, padded)
        pending = np.flatnonzero(tokens[: total if self._first else 0] < 0)
        arrays: list[npt.NDArray[Any]] = [
            tokens,
            positions,
            slot_mapping,
            slots,
            query_starts,
            contexts,
        ]
        if len(pending):
            arrays += [pending, slots[row_of_token[pending]]]
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
            query_lens=query_lens,
            contexts=contexts,
        )


def _sampling_input(
    table: SamplingTable,
    slots: IntArray,
    contexts: IntArray,
    query_starts: IntArray,
    sampled: npt.NDArray[np.intp],
    device: torch.device,
) -> SamplingInput | None:
    """Of the rows that are `sampled`, if any are."""
    if not len(sampled):
        return None
    own = slots[sampled]
    return SamplingInput(
        positions=on_device(query_starts[1:][sampled].astype(np.int64) - 1, device),
        slots=own,
        rows=table.rows(own, contexts[sampled]),
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


def _offsets(lens: IntArray) -> IntArray:
    """Where each row starts among the step's tokens, and their number: int32[R + 1]."""
    offsets = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=offsets[1:])
    return offsets


def _padded(total: int, device: torch.device) -> int:
    return max(total, MIN_CPU_ROWS) if device.type == "cpu" else total


def _widened(data: bytes, dtype: type[np.generic], padded: int) -> npt.NDArray[np.int64]:
    """`data` as int64[padded], filled up with zeros."""
    values = np.frombuffer(data, dtype)
    wide = np.zeros(padded, np.int64)
    wide[: len(values)] = values
    return wide
