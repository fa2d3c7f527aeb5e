"""What the last stage makes of its hidden states: tokens, vectors or scores."""

from dataclasses import dataclass
from typing import Protocol

import torch

from workers.contract.messages import StepOutput
from workers.contract.model_config import PoolingConfig, SpladeConfig
from workers.device.transfer import to_bytes
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.heads.pooling import first_tokens, pool
from workers.heads.requested_outputs import ScoringInput
from workers.heads.splade import sparse_vectors
from workers.models.base import StageModel
from workers.sampling.adjustments import TokenMask
from workers.sampling.logprobs import log_probabilities, ranks
from workers.sampling.sampler import sample
from workers.sampling.sampling_table import SamplingTable
from workers.sampling.sampling_warm_up import warm_up_sampling
from workers.sampling.token_logprobs import TokenLogprobs
from workers.stage.model_input import ModelInput
from workers.step.slot_table import SlotTable

SCORED_AT_ONCE = 512
"""Positions whose logits are held together: a long prompt times a vocabulary is gigabytes."""


@dataclass(frozen=True, slots=True)
class HeadResult:
    """`StepOutput`, while its parts are still tensors: what the step has none of is None.

    tokens int32[S], pooled float32[R, D], or, of sparse vectors, float32[E, 2] and counts int32[R].
    """

    tokens: torch.Tensor | None = None
    sampled: TokenLogprobs | None = None
    scored: TokenLogprobs | None = None
    pooled: torch.Tensor | None = None
    counts: torch.Tensor | None = None

    def to_host(self) -> "HeadResult":
        """The same on the host, where it is once the current stream has come to it.

        A copy that need not wait goes to pinned memory.
        """
        return HeadResult(
            tokens=None if self.tokens is None else self.tokens.to("cpu", non_blocking=True),
            sampled=None if self.sampled is None else self.sampled.to_host(),
            scored=None if self.scored is None else self.scored.to_host(),
            pooled=None if self.pooled is None else self.pooled.to("cpu", non_blocking=True),
            counts=None if self.counts is None else self.counts.to("cpu", non_blocking=True),
        )

    def to_output(self, step: int) -> StepOutput:
        """The message, of tensors on the host, without times."""
        return StepOutput(
            step,
            tokens=b"" if self.tokens is None else to_bytes(self.tokens),
            sampled=None if self.sampled is None else self.sampled.to_message(),
            scored=None if self.scored is None else self.scored.to_message(),
            pooled=b"" if self.pooled is None else to_bytes(self.pooled),
            counts=b"" if self.counts is None else to_bytes(self.counts),
        )


class Head(Protocol):
    """Queues what makes one step's result of its final hidden states, as `forward` leaves them.

    `mask` is given where the step has rows with a grammar.
    """

    def __call__(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult: ...


class GenerateHead:
    """Samples the rows that request it and scores the prompt tokens that have a target."""

    def __init__(self, model: StageModel, slots: SlotTable, sampling: SamplingTable) -> None:
        self._model = model
        self._slots = slots
        self._sampling = sampling

    def __call__(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        _, sampling, scoring = batch.wanted
        scored = self._score(scoring, hidden) if scoring else None
        if sampling is None:
            return HeadResult(scored=scored)
        where = sampling.positions
        logits = self._logits(
            hidden[: len(sampling.slots)] if where is None else hidden.index_select(0, where)
        )
        tokens = sample(logits, sampling.rows, self._sampling.counts, mask)
        self._slots.store_last_tokens(sampling.device_slots, tokens)
        reported = sampling.width >= 0
        return HeadResult(
            tokens=tokens,
            sampled=log_probabilities(logits, tokens, sampling.width) if reported else None,
            scored=scored,
        )

    def warm_up(self, hidden: torch.Tensor) -> None:
        """Compute logits of up to `FEW_ROWS` rows, for each of which a GPU may have another kernel
        (graphs do not contain the LM head), and sample in every way. Overwrites slot 0.

        hidden  [1, hidden_size]
        """
        for rows in range(2, WARM_LM_HEAD_ROWS + 1):
            self._logits(hidden.expand(rows, -1).contiguous())
        warm_up_sampling(self._logits(hidden), self._sampling)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V]: float32 on the CPU, elsewhere in the model's dtype."""
        logits = self._model.compute_logits(hidden)
        return logits.float() if logits.device.type == "cpu" else logits

    def _score(self, scoring: ScoringInput, hidden: torch.Tensor) -> TokenLogprobs:
        pieces: list[TokenLogprobs] = []
        places: list[torch.Tensor] = []
        for start in range(0, len(scoring.positions), SCORED_AT_ONCE):
            piece = slice(start, start + SCORED_AT_ONCE)
            logits = self._logits(hidden[scoring.positions[piece]])
            targets = scoring.targets[piece]
            pieces.append(log_probabilities(logits, targets, scoring.width))
            places.append(ranks(logits, targets))
        return TokenLogprobs(
            chosen=torch.cat([piece.chosen for piece in pieces]),
            top_ids=torch.cat([piece.top_ids for piece in pieces]),
            top=torch.cat([piece.top for piece in pieces]),
            ranks=torch.cat(places),
        )


class EmbedHead:
    """One vector a row, or the states of all its tokens."""

    def __init__(self, pooling: PoolingConfig) -> None:
        self._pooling = pooling

    def __call__(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        pooled = pool(hidden, batch.tensors, self._pooling)
        if batch.told is not None:
            states = hidden[: batch.tensors.num_tokens].float()
            pooled = torch.cat([pooled, states]).index_select(0, batch.told)
        return HeadResult(pooled=pooled)


class SparseHead:
    """One sparse vector a row, from the logits of all its tokens."""

    def __init__(self, model: StageModel, pooling: SpladeConfig) -> None:
        self._model = model
        self._pooling = pooling

    def __call__(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        lens = batch.tensors.query_lens.tolist()
        vectors = sparse_vectors(hidden, lens, self._model.compute_logits, self._pooling)
        return HeadResult(pooled=vectors.entries, counts=vectors.counts)


class ClassifyHead:
    """One logit a label for each row, from its first token."""

    def __init__(self, model: StageModel) -> None:
        self._model = model

    def __call__(
        self, batch: ModelInput, hidden: torch.Tensor, mask: TokenMask | None = None
    ) -> HeadResult:
        return HeadResult(
            pooled=self._model.compute_logits(first_tokens(hidden, batch.tensors)).float()
        )
