"""StepInput -> tensors: computed flat with NumPy on the CPU, then sent to the device at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workers.layers.linear import MIN_CPU_ROWS
from workers.messages import StepInput
from workers.sampler import SamplingRows
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
    """One step as a stage runs it; `sampling` and `scoring` where the step has any."""

    step: int
    tensors: StepTensors
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None


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
            query_starts=starts,
            context_lens=lens,
            query_lens=query_lens,
            contexts=query_lens,
        )
        return ModelInput(message.step, tensors)


class DecoderInputBuilder:
    """Steps of rows that live in slots and keep their context in a paged cache.

    Only the first stage resolves tokens of -1; only the last needs sampling and scoring.
    """

    def __init__(
        self, slots: SlotTable, block_size: int, device: torch.device, *, first: bool, last: bool
    ) -> None:
        self._slots = slots
        self._block_size = block_size
        self._device = device
        self._first = first
        self._last = last

    def build(self, message: StepInput) -> ModelInput:
        """Apply the message's slot changes and make the step's tensors on the device."""
        self._slots.update(message.inits, message.block_updates)
        slots = np.frombuffer(message.slots, np.int32)
        query_lens = np.frombuffer(message.query_lens, np.int32)
        contexts = np.frombuffer(message.starts, np.int32) + query_lens
        query_starts = _offsets(query_lens)
        tensors = self._tensors(message, slots, query_lens, contexts, query_starts)
        if not self._last:
            return ModelInput(message.step, tensors)
        sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
        return ModelInput(
            message.step,
            tensors,
            self._sampling(slots[sampled], contexts[sampled], query_starts[1:][sampled] - 1),
            self._scoring(slots, np.frombuffer(message.targets, np.int32)),
        )

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
        block, offset = np.divmod(positions[:total], self._block_size)
        tables = self._slots.block_tables[slots, : block.max() + 1]
        slot_mapping = tables[row_of_token, block] * np.int64(self._block_size) + offset
        tokens = _widened(message.tokens, np.int32, padded)
        pending = np.flatnonzero(tokens < 0) if self._first else ()
        arrays = [tokens, positions, slot_mapping, tables, query_starts, contexts]
        if len(pending):
            arrays += [pending, slots[row_of_token[pending]]]
        ids, placed, mapping, table, starts, lens, *ahead = to_device(arrays, self._device)
        if ahead:
            pending_tokens, their_slots = ahead
            ids.index_copy_(0, pending_tokens, self._slots.last_tokens.index_select(0, their_slots))
        return StepTensors(
            tokens=ids,
            positions=placed,
            token_types=None,
            slot_mapping=mapping,
            block_tables=table,
            query_starts=starts,
            context_lens=lens,
            query_lens=query_lens,
            contexts=contexts,
        )

    def _sampling(
        self, slots: IntArray, contexts: IntArray, positions: IntArray
    ) -> SamplingInput | None:
        if not len(slots):
            return None
        rows = self._slots.parameters[slots]
        where = on_device(positions.astype(np.int64), self._device)
        return SamplingInput(
            positions=where,
            slots=slots,
            rows=SamplingRows(
                temperature=rows["temperature"],
                top_k=rows["top_k"],
                top_p=rows["top_p"],
                seed=rows["seed"],
                index=contexts - rows["prompt_len"],
            ),
            width=int(rows["logprobs"].max()),
        )

    def _scoring(self, slots: IntArray, targets: IntArray) -> ScoringInput | None:
        scored = np.flatnonzero(targets >= 0)
        if not len(scored):
            return None
        where, tokens = to_device([scored, targets[scored].astype(np.int64)], self._device)
        width = int(self._slots.parameters["prompt_logprobs"][slots].max())
        return ScoringInput(where, tokens, max(width, 0))


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
