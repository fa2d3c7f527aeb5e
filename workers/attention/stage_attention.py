"""Attention between the two halves of a layer: rotates queries and keys, writes the KV cache, and
calls the backend."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, LayerCache
from workers.layers.rotary import RotaryEmbedding, Rotation, rotate
from workers.step.packed_step import PackedStep
from workers.step.paged_step import LastTokens, PagedStep


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


class StageAttention:
    """Attention of a stage's layers, for any step.

    head_counts  the numbers of query and of KV heads
    caches       one a layer; none for an encoder
    rotary       rotates queries and keys; None for a model without rotary embedding
    """

    def __init__(
        self,
        backend: AttentionBackend,
        head_counts: tuple[int, int],
        caches: Sequence[LayerCache],
        rotary: RotaryEmbedding | None,
    ) -> None:
        self.backend, self.head_counts = backend, head_counts
        self.caches, self.rotary = caches, rotary

    def paged(
        self, step: PagedStep, last_tokens: Callable[[], LastTokens | None] = lambda: None
    ) -> "PagedAttention":
        """Attention over the rows of a paged step. `last_tokens` is called when the last layer
        attends; if it returns tokens, only these attend there."""
        return PagedAttention(self, step, last_tokens)

    def packed(self, step: PackedStep) -> "PackedAttention":
        """Attention over the rows of a packed step."""
        return PackedAttention(self, step)

    def split_qkv(self, qkv: torch.Tensor) -> QKV:
        """Split [T', H + 2 Hkv, D] into queries, keys and values."""
        queries, keys = self.head_counts[0], sum(self.head_counts)
        return QKV(qkv[:, :queries], qkv[:, queries:keys], qkv[:, keys:])


class StepAttention(ABC):
    """Attention of one step. The backend never sees padding."""

    def __init__(self, stage: StageAttention, positions: torch.Tensor) -> None:
        """`positions` int64[T'] are those of the step's tokens."""
        self._stage, self._positions = stage, positions
        self._rotation: Rotation | None = None

    @abstractmethod
    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        """Rotate the queries and keys of `qkv` [T', H + 2 Hkv, D] by their positions if the model
        has a rotary embedding, and write keys and values to the layer's cache if there is one.

        `qkv` may be overwritten. On CUDA the result is in `out`, of the same shape, if given.
        """

    @abstractmethod
    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        """The attention output of all tokens, [T', H, D], zero for padding; `qkv` are rotated.

        If given, `out` [T, H, D] receives it and is returned; only for graph-safe backends.
        """

    def attend_in_last_layer(
        self, layer: int, qkv: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden` [T', hidden_size] and the attention output [T', H, D]; both for the last tokens
        alone if the step's results depend on no others."""
        return hidden, self.attend(layer, qkv)

    def _rotated(self, qkv: torch.Tensor) -> QKV:
        rotary = self._stage.rotary
        if rotary is None:
            return self._stage.split_qkv(qkv)
        if self._rotation is None:
            self._rotation = rotary(self._positions)
        num_heads, num_kv_heads = self._stage.head_counts
        rotated = rotate(qkv[:, :-num_kv_heads], self._rotation)
        return QKV(rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, -num_kv_heads:])


class PackedAttention(StepAttention):
    """Each token attends to all of its text."""

    def __init__(self, stage: StageAttention, step: PackedStep) -> None:
        super().__init__(stage, step.positions)
        self._total = step.num_tokens
        self._plan = stage.backend.plan_packed(step)

    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        return self._rotated(qkv)

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        attended = self._stage.backend.attend_packed(*qkv.first(self._total), self._plan)
        return _lengthened(attended, len(qkv.queries))


class PagedAttention(StepAttention):
    """Each token attends to its row's context, which the layer's cache holds."""

    def __init__(
        self,
        stage: StageAttention,
        step: PagedStep,
        last_tokens: Callable[[], LastTokens | None],
    ) -> None:
        super().__init__(stage, step.positions)
        self._step, self._last_tokens = step, last_tokens

    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        stage, cache = self._stage, self._stage.caches[layer]
        if qkv.is_cuda and stage.rotary is not None:
            out = qkv if out is None else out
            table, num_heads = stage.rotary.table, stage.head_counts[0]
            _rotate_and_cache_fused(qkv, table, num_heads, cache, self._step, out)
            return stage.split_qkv(out)
        rotated = self._rotated(qkv)
        _, keys, values = rotated.first(self._step.num_tokens)
        stage.backend.write_kv(keys, values, cache, self._plan)
        return rotated

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        backend, cache = self._stage.backend, self._stage.caches[layer]
        queries, keys, values = qkv.first(self._step.num_tokens)
        attended = backend.attend_paged(queries, keys, values, cache, self._plan, out)
        return attended if out is not None else _lengthened(attended, len(qkv.queries))

    def attend_in_last_layer(
        self, layer: int, qkv: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last = self._last_tokens()
        if last is None:
            return super().attend_in_last_layer(layer, qkv, hidden)
        return hidden.index_select(0, last.indices), self._attend_last_tokens(layer, qkv, last)

    def _attend_last_tokens(self, layer: int, qkv: QKV, last: LastTokens) -> torch.Tensor:
        """The attention output of the tokens `last`, [E', H, D]; `qkv` are rotated."""
        own = qkv.at(last.indices)
        if not last.rows.num_tokens:
            return own.queries
        backend, cache = self._stage.backend, self._stage.caches[layer]
        queries, keys, values = own.first(last.rows.num_tokens)
        plan = backend.plan_paged(last.rows)
        attended = backend.attend_paged(queries, keys, values, cache, plan)
        return _lengthened(attended, len(own.queries))

    @cached_property
    def _plan(self) -> Any:
        return self._stage.backend.plan_paged(self._step)


def _lengthened(attended: torch.Tensor, count: int) -> torch.Tensor:
    """[T, H, D] with zeros added up to `count` tokens."""
    missing = count - len(attended)
    return F.pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended


def _rotate_and_cache_fused(
    qkv: torch.Tensor,
    table: torch.Tensor,
    num_heads: int,
    cache: LayerCache,
    step: PagedStep,
    out: torch.Tensor,
) -> None:
    """On CUDA: rotate queries and keys by the rotary `table`, and write keys and values to the
    cache, in one kernel."""
    # Imported here, because a machine without a GPU may have no Triton.
    from workers.kernels.attention.rotate_and_cache import rotate_and_cache  # noqa: PLC0415

    caches = cache.keys, cache.values
    rotate_and_cache(qkv, table, step.positions, step.kv_indices, *caches, num_heads, out)
