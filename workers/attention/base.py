"""What an attention backend is: the one interface between models and kernels."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from workers.step_tensors import StepTensors


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; a model's needs are checked against it at start."""

    causal_paged: bool
    bidirectional: bool
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model asks of its backend."""

    paged: bool
    device: str
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's paged keys and values: [num_blocks, block_size, num_kv_heads, head_dim] each."""

    keys: torch.Tensor
    values: torch.Tensor


class AttentionBackend(Protocol):
    """Attention over a step's rows. `plan` runs once a step, the rest once a layer.

    Queries are [T, num_heads, head_dim], keys and values [T, num_kv_heads, head_dim], without
    padding. With a cache, row r attends causally to its whole context (its `contexts[r]` tokens,
    the last `query_lens[r]` of which are this step's, already written). Without one, each row
    attends to all of itself.
    """

    capabilities: Capabilities

    def __init__(self, needs: AttentionNeeds) -> None: ...

    def plan(self, step: StepTensors) -> Any:
        """Everything the layers share in this step, computed once, without synchronising."""
        ...

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: Any
    ) -> None:
        """Put this step's keys and values into their blocks, for every row before any reads."""
        ...

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache | None,
        plan: Any,
    ) -> torch.Tensor:
        """Attend. Returns [T, num_heads, head_dim]; scale is head_dim ** -0.5."""
        ...
