"""The positions of a decode step from which the last stage samples or scores."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import DecodeStep
from workers.device.transfer import to_device
from workers.sampling.sampling_table import SamplingRows, SamplingTable
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import IntArray, StepRows


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """How the S rows of a step with a requested output sample.

    `device_slots` int32[S] are their slots. `width` is the most alternatives that any of them
    reports, -1 for no log-probabilities.
    """

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
    """What the head computes from a step: from the last tokens of its S rows with a requested
    output, which it samples if there is a `sampling`, and from those with a target.

    last_tokens         given where the head reads the final states of these tokens alone
    num_rows            S
    last_token_indices  int64[S] on the device: of the last tokens among the step's T; None where
                        the final hidden states begin with theirs
    """

    last_tokens: LastTokens | None = None
    num_rows: int = 0
    last_token_indices: torch.Tensor | None = None
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None

    def last_states(self, hidden: torch.Tensor) -> torch.Tensor:
        """Those of the last tokens, [S, D], among the final states as `forward` leaves them."""
        if self.last_token_indices is None:
            return hidden[: self.num_rows]
        return hidden.index_select(0, self.last_token_indices)


def requested_outputs(
    message: DecodeStep,
    rows: StepRows,
    step: PagedStep,
    table: SamplingTable | None,
    *,
    all_states: bool,
) -> RequestedOutputs:
    """The outputs that a message requests, by the sampling parameters of its slots.

    `rows` and `step` are the message's. Without a `table` nothing is sampled or scored.
    `all_states`: the head gets the final states of all tokens anyway.
    """
    device = step.slots.device
    scoring = _scoring(table, rows.slots, message.targets, device) if table is not None else None
    sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
    last_tokens = indices = None
    if len(sampled) == rows.total:
        own = step.slots[: len(sampled)]
    elif scoring is None and not all_states:
        last_tokens = LastTokens.of(step, rows, sampled)
        own = last_tokens.rows.slots
    else:
        indices, own = to_device([rows.last_token_indices[sampled], rows.slots[sampled]], device)
    sampling = _sampling(table, rows, sampled, own) if table is not None else None
    return RequestedOutputs(last_tokens, len(sampled), indices, sampling, scoring)


def _scoring(
    table: SamplingTable, slots: IntArray, targets: bytes, device: torch.device
) -> ScoringInput | None:
    following = np.frombuffer(targets, np.int32)
    scored = np.flatnonzero(following >= 0)
    if not len(scored):
        return None
    positions, tokens = to_device([scored, following[scored].astype(np.int64)], device)
    return ScoringInput(positions, tokens, table.scored_width(slots))


def _sampling(
    table: SamplingTable,
    rows: StepRows,
    sampled: npt.NDArray[np.intp],
    device_slots: torch.Tensor,
) -> SamplingInput | None:
    """For the rows `sampled`, if there are any."""
    if not len(sampled):
        return None
    own = rows.slots[sampled]
    return SamplingInput(
        device_slots=device_slots,
        rows=table.rows(own, rows.contexts[sampled]),
        width=table.sampled_width(own),
    )
