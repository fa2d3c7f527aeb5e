"""The heads of a decoder's last stage: sampled tokens, vectors or scores of requested outputs."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from workers.contract.config import Task
from workers.contract.messages import (
    ClassifyOutput,
    DecodeStep,
    EmbedOutput,
    GenerateOutput,
    Logprobs,
)
from workers.device.transfer import to_device
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.heads.base import HeadResult
from workers.models.base import StageModel
from workers.sampling.reading import ReadTokens, read_logits
from workers.sampling.sampler import (
    TokenLogprobs,
    log_probabilities,
    ranks,
    sample,
    warm_up_sampling,
)
from workers.sampling.sampling_table import SamplingRows, SamplingTable, TokenMask
from workers.step.paged_step import LastTokens, PagedStep
from workers.step.rows import IntArray, StepRows
from workers.step.slot_table import SlotTable

SCORED_AT_ONCE = 512
"""Positions whose logits are held together: all of a long prompt's are gigabytes."""


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """Sampling of S rows of a step, in slots `device_slots` int32[S]. `width` is the most
    alternatives that any of them reports, -1 for no log-probabilities. Of some rows, tokens are
    `read`."""

    device_slots: torch.Tensor
    rows: SamplingRows
    width: int
    read: ReadTokens | None = None


@dataclass(frozen=True, slots=True)
class ScoringInput:
    """The N positions of a step whose next token is scored. int64[N] each, on the device; at most
    `width` alternatives are reported."""

    positions: torch.Tensor
    targets: torch.Tensor
    width: int


class RequestedOutputs(NamedTuple):
    """Outputs of a step: of the last tokens of S rows, perhaps sampled, and of scored positions.

    last_tokens         given where the head reads the final states of these tokens alone
    num_rows            S
    last_token_indices  int64[S] on the device, among the step's T tokens; None where the final
                        states begin with those of the last tokens
    """

    last_tokens: LastTokens | None = None
    num_rows: int = 0
    last_token_indices: torch.Tensor | None = None
    sampling: SamplingInput | None = None
    scoring: ScoringInput | None = None

    def last_states(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states of the last tokens, [S, D], from the final states."""
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

    Without a `table` nothing is sampled or scored. `all_states`: the head gets the final states of
    all tokens anyway.
    """
    device, scoring, sampling = step.slots.device, None, None
    if table is not None:
        scoring = _scoring(table, rows.slots, message.targets, device)
    sampled = np.flatnonzero(np.frombuffer(message.sample, np.uint8))
    last_tokens = indices = None
    if len(sampled) == rows.total:
        own = step.slots[: len(sampled)]
    elif scoring is None and not all_states:
        last_tokens = LastTokens.of(step, rows, sampled)
        own = last_tokens.rows.slots
    else:
        indices, own = to_device([rows.last_token_indices[sampled], rows.slots[sampled]], device)
    if table is not None and len(sampled):
        slots = rows.slots[sampled]
        drawn, read = table.rows(slots, rows.contexts[sampled]), table.read_tokens(slots)
        tokens = ReadTokens(*to_device(read, device)) if read else None
        sampling = SamplingInput(own, drawn, table.sampled_width(slots), tokens)
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


class GenerateHead:
    """Samples the rows that request it and scores the prompt tokens that have a target."""

    def __init__(self, model: StageModel, slots: SlotTable, sampling: SamplingTable) -> None:
        self._model = model
        self._slots = slots
        self._sampling = sampling

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        """Queue the work on a step's final hidden states, with the `mask` of masked rows."""
        sampling, scoring = requested.sampling, requested.scoring
        fields: dict[str, torch.Tensor | HeadResult] = {}
        if scoring is not None:
            fields["scored"] = self._score(scoring, hidden)
        if sampling is not None:
            logits = self._logits(requested.last_states(hidden))
            tokens = sample(logits, sampling.rows, self._sampling.counts, mask)
            self._slots.store_last_tokens(sampling.device_slots, tokens)
            fields["tokens"] = tokens
            if sampling.width >= 0:
                found = log_probabilities(logits, tokens, sampling.width)
                fields["sampled"] = _reported(sampling.width, found)
            if sampling.read is not None:
                fields["read"] = read_logits(logits, sampling.read)
        return HeadResult(GenerateOutput, fields)

    def warm_up(self, hidden: torch.Tensor) -> None:
        """Compute logits of 1 to WARM_LM_HEAD_ROWS rows `hidden` [1, hidden_size]: a GPU may have a
        kernel for each number. Then sample in every way. Overwrites slot 0."""
        for rows in range(2, WARM_LM_HEAD_ROWS + 1):
            self._logits(hidden.expand(rows, -1).contiguous())
        warm_up_sampling(self._logits(hidden), self._sampling)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V]: float32 on the CPU, elsewhere in the model's dtype."""
        logits = self._model.compute_logits(hidden)
        return logits.float() if logits.device.type == "cpu" else logits

    def _score(self, scoring: ScoringInput, hidden: torch.Tensor) -> HeadResult:
        parts: list[TokenLogprobs] = []
        token_ranks: list[torch.Tensor] = []
        pieces = [
            torch.split(each, SCORED_AT_ONCE) for each in (scoring.positions, scoring.targets)
        ]
        for positions, targets in zip(*pieces, strict=True):
            logits = self._logits(hidden[positions])
            parts.append(log_probabilities(logits, targets, scoring.width))
            token_ranks.append(ranks(logits, targets))
        columns = TokenLogprobs(*map(torch.cat, zip(*parts, strict=True)))
        return _reported(scoring.width, columns, ranks=torch.cat(token_ranks))


def _reported(width: int, found: TokenLogprobs, **others: torch.Tensor) -> HeadResult:
    """Log-probabilities as part of a message."""
    return HeadResult(partial(Logprobs, width), found._asdict() | others)


class LastTokenHead:
    """Vectors or scores of rows that end in a step, from the final state of their last tokens.

    A reranker's score is the logit of one token, or the difference of two tokens' logits.
    """

    def __init__(self, model: StageModel, task: Task) -> None:
        self._model, self._task = model, task

    def __call__(
        self, requested: RequestedOutputs, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        """Queue the work on a step's final hidden states. Nothing is sampled or masked."""
        del mask
        states = requested.last_states(hidden)
        if self._task == "embed":
            return HeadResult(EmbedOutput, {"vectors": self._model.compute_logits(states.float())})
        logits = read_logits(self._model.compute_logits(states))
        if self._task == "rerank" and logits.shape[1] == 2:
            logits = logits[:, :1] - logits[:, 1:]
        return HeadResult(ClassifyOutput, {"logits": logits})
