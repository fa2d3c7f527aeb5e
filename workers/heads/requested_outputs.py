"""The positions of a decode step from which the last stage samples or scores."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import DecodeStep, SlotInit
from workers.device.transfer import to_device
from workers.sampling.sampling_table import SamplingRows, SamplingTable
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import IntArray, StepRows


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The S rows of a step that sample.

    `last_token_indices` int64[S] on the device: of their last tokens among the step's T; None where
    the final hidden states begin with theirs. `device_slots` int32[S] are their slots there.
    `width` is the most alternatives that any of them reports, -1 for no log-probabilities.
    """

    last_token_indices: torch.Tensor | None
    slots: IntArray
    device_slots: torch.Tensor
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


class RequestedOutputs(NamedTuple):
    """What the head computes from a step. `last_tokens` is given where it reads the final states of
    these tokens alone."""

    last_tokens: LastTokens | None = None
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None


class RequestedOutputsBuilder:
    """Finds them from a step's message and the sampling parameters of its slots."""

    def __init__(self, table: SamplingTable, device: torch.device) -> None:
        self._table, self._device = table, device

    def begin(self, inits: Iterable[SlotInit]) -> None:
        """Slots change hands."""
        self._table.update(inits)

    def build(
        self, message: DecodeStep, rows: StepRows, step: PagedStep, *, all_states: bool
    ) -> RequestedOutputs:
        """`rows` and `step` are the message's. `all_states`: the head gets the final states of all
        tokens anyway."""
        scoring = self._scoring(rows.slots, message.targets)
        sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
        if len(sampled) == rows.total:
            own = step.slots[: len(sampled)]
            return RequestedOutputs(None, self._sampling(rows, sampled, own, None), scoring)
        if scoring is None and not all_states:
            last = LastTokens.of(step, rows, sampled)
            return RequestedOutputs(last, self._sampling(rows, sampled, last.rows.slots, None))
        indices, own = to_device(
            [rows.last_token_indices[sampled], rows.slots[sampled]], self._device
        )
        return RequestedOutputs(None, self._sampling(rows, sampled, own, indices), scoring)

    def _sampling(
        self,
        rows: StepRows,
        sampled: npt.NDArray[np.intp],
        device_slots: torch.Tensor,
        last_token_indices: torch.Tensor | None,
    ) -> SamplingInput | None:
        """For the rows `sampled`, if there are any."""
        if not len(sampled):
            return None
        own = rows.slots[sampled]
        return SamplingInput(
            last_token_indices=last_token_indices,
            slots=own,
            device_slots=device_slots,
            rows=self._table.rows(own, rows.contexts[sampled]),
            width=self._table.sampled_width(own),
        )

    def _scoring(self, slots: IntArray, targets: bytes) -> ScoringInput | None:
        following = np.frombuffer(targets, np.int32)
        scored = np.flatnonzero(following >= 0)
        if not len(scored):
            return None
        positions, tokens = to_device([scored, following[scored].astype(np.int64)], self._device)
        return ScoringInput(positions, tokens, self._table.scored_width(slots))
