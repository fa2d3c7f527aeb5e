"""What a step's last stage is asked for, beside running its layers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import SlotInit, StepInput
from workers.device.transfer import to_device
from workers.sampling.sampling_table import SamplingRows, SamplingTable
from workers.step.padding import lengthened, padded_count
from workers.step.rows import StepRows
from workers.step.tensors import Ends, IntArray, StepTensors


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """The S rows of a step that sample.

    positions int64[S] on the device: where their last tokens are among the step's T, None where
    the final hidden states begin with theirs. `device_slots` int32[S] are their slots there.
    `width` is the most alternatives that any of them reports, -1 for no log-probabilities.
    """

    positions: torch.Tensor | None
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


class Wanted(NamedTuple):
    """`ends` where the final states of these alone are asked for."""

    ends: Ends | None = None
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None


Ask = Callable[[], Wanted]
"""Makes it, once the layers need it: where they are captured, while they run."""


class Wants:
    """Makes what steps of a decoder are asked for, by what is remembered of each slot."""

    def __init__(self, table: SamplingTable, device: torch.device) -> None:
        self._table, self._device = table, device

    def begin(self, inits: Iterable[SlotInit]) -> None:
        """Slots change hands."""
        self._table.update(inits)

    def of(
        self, message: StepInput, rows: StepRows, step: StepTensors, *, all_states: bool
    ) -> Wanted:
        """`step` are the message's tensors. `all_states`: it comes with every token's final state
        anyhow."""
        scoring = self._scoring(rows.slots, message.targets)
        sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
        assert step.slots is not None, "a decoder's rows have slots"
        if len(sampled) == rows.total:
            own = step.slots[: len(sampled)]
            return Wanted(None, self._sampling(rows, sampled, own, None), scoring)
        if scoring is None and not all_states:
            ends, own = self._ends(step, rows, sampled)
            return Wanted(ends, self._sampling(rows, sampled, own, None))
        positions, own = to_device([rows.ends[sampled], rows.slots[sampled]], self._device)
        return Wanted(None, self._sampling(rows, sampled, own, positions), scoring)

    def _ends(
        self, step: StepTensors, rows: StepRows, sampled: npt.NDArray[np.intp]
    ) -> tuple[Ends, torch.Tensor]:
        """The last tokens of these rows, and the rows' slots on the device."""
        count = len(sampled)
        places = rows.ends[sampled]
        if count:
            places = lengthened(places, padded_count(count, self._device))
        contexts = rows.contexts[sampled]
        arrays = [places, rows.slots[sampled], contexts, np.arange(count + 1, dtype=np.int32)]
        positions, slots, lens, starts = to_device(arrays, self._device)
        alone = replace(
            step,
            slots=slots,
            query_starts=starts,
            context_lens=lens,
            query_lens=np.ones(count, np.int32),
            contexts=contexts,
        )
        return Ends(positions, alone), slots

    def _sampling(
        self,
        rows: StepRows,
        sampled: npt.NDArray[np.intp],
        device_slots: torch.Tensor,
        positions: torch.Tensor | None,
    ) -> SamplingInput | None:
        """Of the rows `sampled`, if there are any."""
        if not len(sampled):
            return None
        own = rows.slots[sampled]
        return SamplingInput(
            positions=positions,
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
        where, tokens = to_device([scored, following[scored].astype(np.int64)], self._device)
        return ScoringInput(where, tokens, self._table.scored_width(slots))
