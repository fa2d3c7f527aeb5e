"""What an attention backend is: the one interface between models and kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution that a backend needs, and where one gets it."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; a model's needs are checked against it at start.

    Where `head_dims` (head sizes) or `compute_majors` (first numbers of CUDA compute capabilities)
    is None, any will do. `page_multiple` divides the block sizes of the caches it reads.

    `graph_safe`: for steps of one query a row, `plan` and `forward` launch the same kernels on the
    same grids for the same number of rows, read lengths on the device only, allocate through torch
    and never synchronise, so that a CUDA graph of them is right for any lengths.
    `chunks_graph_safe`: they do so for steps with rows of several queries too, for the same numbers
    of tokens, of leading rows of one query and of others, and the same longest ones. `forward` then
    writes to the tokens of its rows alone, and of leading rows with an empty context not to theirs.
    """

    causal_paged: bool
    bidirectional: bool
    graph_safe: bool
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    head_dims: Sequence[int] | None = None
    page_multiple: int = 1
    chunks_graph_safe: bool = False
    compute_majors: tuple[int, ...] | None = None
    requires: Package | None = None


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
    """One layer's paged keys and values: [blocks, block_size, num_kv_heads, head_dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def write(self, keys: torch.Tensor, values: torch.Tensor, kv_indices: torch.Tensor) -> None:
        """Put keys and values [T, num_kv_heads, head_dim] where `kv_indices` int64[T] says."""
        self.keys.flatten(0, 1).index_copy_(0, kv_indices, keys)
        self.values.flatten(0, 1).index_copy_(0, kv_indices, values)


class AttentionBackend(Protocol):
    """Attention over a step's rows. A plan is made once a step, the rest runs once a layer.

    Queries are [T, num_heads, head_dim], keys and values [T, num_kv_heads, head_dim], without
    padding; scale is head_dim ** -0.5. A backend is asked only for what its `capabilities` declare:
    the paged methods with `causal_paged`, the packed ones with `bidirectional`.
    """

    capabilities: Capabilities

    def __init__(self, needs: AttentionNeeds) -> None: ...

    def plan_paged(self, step: PagedStep) -> Any:
        """Everything the layers share in this step, computed once, without synchronising."""
        ...

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: Any
    ) -> None:
        """Put this step's keys and values into their blocks, for every row before any reads."""
        ...

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: Any,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Row r attends causally to its whole context: its `contexts[r]` tokens, the last
        `query_lens[r]` of which are this step's, already written. Returns [T, num_heads, head_dim].

        A graph-safe backend puts it into `out` where that is given; others are not given any.
        """
        ...

    def plan_packed(self, step: PackedStep) -> Any:
        """As `plan_paged`."""
        ...

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Any
    ) -> torch.Tensor:
        """Each token attends to all of its row. Returns [T, num_heads, head_dim]."""
        ...
