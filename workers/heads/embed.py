"""Pools token states to one vector a row, and returns the states that are requested."""

from dataclasses import dataclass

import torch

from workers.contract.embedding_modules import PoolingConfig
from workers.contract.messages import EmbedOutput
from workers.device.transfer import to_bytes
from workers.heads.base import to_host
from workers.heads.pooling import pool
from workers.heads.vector_modules import VectorModules
from workers.step.packed_step import PackedStep


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """A vector a row, float32[R, D], and the requested token states, float32[S, hidden_size]."""

    vectors: torch.Tensor
    states: torch.Tensor | None = None

    def to_host(self) -> "EmbedResult":
        states = None if self.states is None else to_host(self.states)
        return EmbedResult(to_host(self.vectors), states)

    def to_output(self, step: int) -> EmbedOutput:
        states = b"" if self.states is None else to_bytes(self.states)
        return EmbedOutput(step, vectors=to_bytes(self.vectors), states=states)


class EmbedHead:
    """Pooling and the modules behind it; token states are those before the pooling."""

    def __init__(self, pooling: PoolingConfig, modules: VectorModules) -> None:
        self._pooling = pooling
        self._modules = modules

    def __call__(self, step: PackedStep, hidden: torch.Tensor) -> EmbedResult:
        vectors = self._modules(pool(hidden, step, self._pooling))
        if step.state_indices is None:
            return EmbedResult(vectors)
        return EmbedResult(vectors, hidden.index_select(0, step.state_indices).float())
