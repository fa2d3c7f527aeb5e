"""The interface of attention backends, between models and kernels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from workers.attention.distance_vectors import DistanceVectors
from workers.attention.fp8_numbers import FP8, dequantized, packed, quantized, unpacked
from workers.attention.prefix_tiles import PrefixTiler
from workers.contract.model_config import AttentionKind
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a backend, checked against a model's needs at start. All scale scores.

    causal_windows, bidirectional_windows, softcap, position_bias  as in `AttentionKind`
    sinks              likewise, over a paged cache
    disentangled       the products of a `DisentangledBias`, which is no `position_bias` here
    head_dims          sizes of attention heads; None for any
    compute_majors     first numbers of CUDA compute capabilities; None for any
    page_multiple      divides the block sizes that the backend can read
    graph_safe         a CUDA graph of planning and attending decode rows is right for any lengths:
                       the same kernels run on the same grids, read lengths on the device only,
                       allocate through torch and never synchronise.
    chunks_graph_safe  likewise for steps with chunks, for given numbers of tokens, decode rows and
                       chunks, and maximum lengths. Nothing is written for a decode row without
                       context. The same for steps of texts, of which some may have no tokens.
    unattended         of a text, its last tokens may be hidden from all (`PackedStep`)
    prefix_groups      prefixes that rows share are attended once, where that pays
    fp8_cache          whether caches that are read are in FP8: never, always, or either way
    requires           a distribution, and how to install it
    """

    causal_paged: bool
    bidirectional: bool
    graph_safe: bool
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    causal_windows: bool = False
    bidirectional_windows: bool = False
    softcap: bool = False
    position_bias: bool = False
    sinks: bool = False
    disentangled: bool = False
    unattended: bool = False
    head_dims: Sequence[int] | None = None
    page_multiple: int = 1
    chunks_graph_safe: bool = False
    prefix_groups: bool = False
    fp8_cache: tuple[bool, ...] = (False,)
    compute_majors: tuple[int, ...] | None = None
    requires: tuple[str, str] | None = None


EVERY_KIND = Capabilities(
    causal_paged=True,
    bidirectional=True,
    graph_safe=False,
    devices=("cpu", "cuda"),
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    causal_windows=True,
    bidirectional_windows=True,
    softcap=True,
    position_bias=True,
    sinks=True,
    disentangled=True,
    unattended=True,
    fp8_cache=(False, True),
)
"""Every kind of attention of every model, anywhere, but in no graph."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """Needs of one kind of a model's layers."""

    kind: AttentionKind
    device: str
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    fp8_cache: bool = False
    unattended: bool = False

    @property
    def paged(self) -> bool:
        """Whether keys and values are in a paged cache."""
        return self.kind.causal


class LayerCache(NamedTuple):
    """One layer's paged keys and values: [blocks, block_size, num_kv_heads, head_dim] each.

    In FP8 (see `fp8_numbers`) they have packed `scales`, int32[blocks, num_kv_heads, block_size]:
    what a kernel reads of a block is in one piece, and four bytes are the least that it can load
    ahead.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None = None

    def write(self, kv_indices: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values [T, Hkv, D] to `kv_indices` int64[T]."""
        if self.scales is not None:
            (keys, key_scales), (values, value_scales) = quantized(keys), quantized(values)
            block, place = kv_indices // self.keys.shape[1], kv_indices % self.keys.shape[1]
            self.scales[block, :, place] = packed(key_scales, value_scales)
        for cached, new in ((self.keys, keys), (self.values, values)):
            _indexable(cached).flatten(0, 1).index_copy_(0, kv_indices, _indexable(new))

    def read(
        self, kv_indices: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `kv_indices` [N]: [N, Hkv, D] each."""
        keys, values = _rows(self.keys, kv_indices), _rows(self.values, kv_indices)
        if self.scales is None:
            return keys, values
        block, place = kv_indices // self.keys.shape[1], kv_indices % self.keys.shape[1]
        key_scales, value_scales = unpacked(self.scales[block, :, place])
        return dequantized(keys, key_scales, dtype), dequantized(values, value_scales, dtype)


def _rows(cached: torch.Tensor, kv_indices: torch.Tensor) -> torch.Tensor:
    """[N, Hkv, D] of the cache, viewed as a matrix: index_select copies rows of one at once."""
    kv_heads, head_dim = cached.shape[2:]
    rows = _indexable(cached).view(-1, kv_heads * head_dim).index_select(0, kv_indices)
    return rows.view(cached.dtype).view(-1, kv_heads, head_dim)


def _indexable(numbers: torch.Tensor) -> torch.Tensor:
    """FP8 as bytes: torch cannot index it on every device."""
    return numbers.view(torch.uint8) if numbers.dtype == FP8 else numbers


class QKV(NamedTuple):
    """Queries [T', H, D], keys and values [T', Hkv, D]."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def first(self, count: int) -> "QKV":
        """The part of the first `count` tokens."""
        return QKV(self.queries[:count], self.keys[:count], self.values[:count])

    def at(self, tokens: torch.Tensor) -> "QKV":
        """The part of the tokens int64[N]: [N, ...] each."""
        return QKV(*(part.index_select(0, tokens) for part in self))


class AttentionBackend(ABC):
    """Attention of one kind of layers over a step's rows without padding, planned once a step.

    Paged methods need the capability `causal_paged`, packed ones `bidirectional`.

    label         what messages call it
    prefix_tiler  divides the shared prefixes of a captured step; for layers without windows
    """

    label: str
    capabilities: Capabilities
    prefix_tiler: PrefixTiler | None = None

    def __init__(self, needs: AttentionNeeds) -> None:
        """Raises whatever a missing or broken build of a library raises on import."""
        self._needs, self._kind = needs, needs.kind

    @abstractmethod
    def plan_paged(self, step: PagedStep) -> Any:
        """Compute what the layers share in this step, without synchronising."""

    def write_kv(self, qkv: QKV, cache: LayerCache, kv_indices: torch.Tensor) -> None:
        """Write this step's keys and values to `kv_indices` int64[T]."""
        cache.write(kv_indices, qkv.keys, qkv.values)

    @abstractmethod
    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: Any,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend causally from each row's queries, the last tokens of its context, to all of it.
        In a layer with another's cache `qkv` has no keys and values.

        Returns [T, num_heads, head_dim]: `out` if given, to graph-safe backends only. `sinks`,
        float32[H], need that capability.
        """

    @abstractmethod
    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> Any:
        """Like `plan_paged`. `position_bias` [num_heads, 2 * L - 1], contiguous, has at
        L - 1 + k - q what is added to the score of query q and key k. No row is longer than L.
        """

    @abstractmethod
    def attend_packed(self, qkv: QKV, plan: Any) -> torch.Tensor:
        """Attend from each token to all of its row. Returns [T, num_heads, head_dim]."""

    def attend_disentangled(self, qkv: QKV, plan: Any, vectors: DistanceVectors) -> torch.Tensor:
        """Like `attend_packed`, with the scores of `vectors` too. Needs `disentangled`."""
        raise NotImplementedError
