"""Pools token logits to one sparse vector a row, of the size of the vocabulary."""

from dataclasses import dataclass

import torch

from workers.contract.messages import EmbedSparseOutput
from workers.contract.model_config import SpladeConfig
from workers.device.transfer import to_bytes
from workers.heads.base import to_host
from workers.heads.splade import SparseVectors, sparse_vectors
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep


@dataclass(frozen=True, slots=True)
class EmbedSparseResult:
    """The sparse vectors of a step's rows."""

    vectors: SparseVectors

    def to_host(self) -> "EmbedSparseResult":
        vectors = self.vectors
        return EmbedSparseResult(SparseVectors(to_host(vectors.counts), to_host(vectors.entries)))

    def to_output(self, step: int) -> EmbedSparseOutput:
        entries, counts = to_bytes(self.vectors.entries), to_bytes(self.vectors.counts)
        return EmbedSparseOutput(step, entries=entries, counts=counts)


class EmbedSparseHead:
    """One sparse vector a row, from the logits of all its tokens."""

    def __init__(self, model: StageModel, pooling: SpladeConfig) -> None:
        self._model = model
        self._pooling = pooling

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> EmbedSparseResult:
        lens = step.query_lens.tolist()
        logits = self._model.compute_logits
        return EmbedSparseResult(sparse_vectors(hidden, lens, logits, self._pooling))
