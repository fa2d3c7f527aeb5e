"""Pools token states to one vector a row, or returns the states themselves."""

from dataclasses import dataclass

import torch

from workers.contract.messages import EmbedOutput
from workers.contract.model_config import PoolingConfig
from workers.device.transfer import to_bytes
from workers.heads.base import to_host
from workers.heads.pooling import pool
from workers.step.packed_step import PackedStep


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """float32[N, D]: a vector a row, or one a token of rows whose token states are requested."""

    vectors: torch.Tensor

    def to_host(self) -> "EmbedResult":
        return EmbedResult(to_host(self.vectors))

    def to_output(self, step: int) -> EmbedOutput:
        return EmbedOutput(step, vectors=to_bytes(self.vectors))


class EmbedHead:
    """One vector a row, or the states of all its tokens."""

    def __init__(self, pooling: PoolingConfig) -> None:
        self._pooling = pooling

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> EmbedResult:
        pooled = pool(hidden, step, self._pooling)
        if step.output_indices is None:
            return EmbedResult(pooled)
        states = hidden[: step.num_tokens].float()
        return EmbedResult(torch.cat([pooled, states]).index_select(0, step.output_indices))
