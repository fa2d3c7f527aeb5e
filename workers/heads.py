"""What the last stage makes of its hidden states: tokens, vectors or scores."""

from typing import Protocol

import torch

from workers.messages import Logprobs, StepOutput
from workers.model_config import PoolingConfig
from workers.model_input import ModelInput, ScoringInput
from workers.models.base import StageModel
from workers.pooler import first_tokens, pool
from workers.sampler import log_probabilities, sample
from workers.slots import SlotTable
from workers.transfer import to_bytes

SCORED_AT_ONCE = 512
"""Positions whose logits are held together: a long prompt times a vocabulary is gigabytes."""


class Head(Protocol):
    """Reports one step from its final hidden states [T', hidden_size]."""

    def __call__(self, batch: ModelInput, hidden: torch.Tensor) -> StepOutput: ...


class GenerateHead:
    """Samples the rows that ask for it and scores the prompt tokens that have a target."""

    def __init__(self, model: StageModel, slots: SlotTable) -> None:
        self._model = model
        self._slots = slots

    def __call__(self, batch: ModelInput, hidden: torch.Tensor) -> StepOutput:
        scored = self._score(batch.scoring, hidden) if batch.scoring else None
        sampling = batch.sampling
        if sampling is None:
            return StepOutput(batch.step, scored=scored)
        logits = self._model.head(hidden.index_select(0, sampling.positions)).float()
        tokens = sample(logits, sampling.rows)
        self._slots.store_last_tokens(sampling.slots, tokens)
        reported = sampling.width >= 0
        return StepOutput(
            batch.step,
            tokens=to_bytes(tokens.int()),
            sampled=log_probabilities(logits, tokens, sampling.width) if reported else None,
            scored=scored,
        )

    def _score(self, scoring: ScoringInput, hidden: torch.Tensor) -> Logprobs:
        pieces: list[Logprobs] = []
        for start in range(0, len(scoring.positions), SCORED_AT_ONCE):
            piece = slice(start, start + SCORED_AT_ONCE)
            logits = self._model.head(hidden[scoring.positions[piece]]).float()
            pieces.append(log_probabilities(logits, scoring.targets[piece], scoring.width))
        return Logprobs(
            width=scoring.width,
            chosen=b"".join(piece.chosen for piece in pieces),
            top_ids=b"".join(piece.top_ids for piece in pieces),
            top=b"".join(piece.top for piece in pieces),
        )


class EmbedHead:
    """One vector a row."""

    def __init__(self, pooling: PoolingConfig) -> None:
        self._pooling = pooling

    def __call__(self, batch: ModelInput, hidden: torch.Tensor) -> StepOutput:
        vectors = pool(hidden, batch.tensors, self._pooling)
        return StepOutput(batch.step, pooled=to_bytes(vectors))


class ClassifyHead:
    """One score a label for each row, from its first token."""

    def __init__(self, model: StageModel, *, sigmoid: bool) -> None:
        self._model = model
        self._sigmoid = sigmoid

    def __call__(self, batch: ModelInput, hidden: torch.Tensor) -> StepOutput:
        scores = self._model.head(first_tokens(hidden, batch.tensors)).float()
        return StepOutput(
            batch.step, pooled=to_bytes(scores.sigmoid() if self._sigmoid else scores)
        )
