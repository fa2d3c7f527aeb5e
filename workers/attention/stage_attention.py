"""A step's attention between the halves of a layer: from packed, unrotated heads to what was
attended."""

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
        """Those of the first `count` tokens."""
        return QKV(self.queries[:count], self.keys[:count], self.values[:count])

    def at(self, tokens: torch.Tensor) -> "QKV":
        """Those of the tokens int64[N], [N, ...] each."""
        return QKV(*(part.index_select(0, tokens) for part in self))


class StageAttention:
    """What the attention of a stage's layers has in common, whatever the step.

    `head_counts` are the numbers of query and of KV heads; `caches` the stage's, by layer, none for
    an encoder; `rotary` rotates queries and keys where the model has it.
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
        """This attention over the rows of a paged step. `last_tokens` is called when the last layer
        attends: where it returns some, only they do."""
        return PagedAttention(self, step, last_tokens)

    def packed(self, step: PackedStep) -> "PackedAttention":
        """This attention over the rows of a packed step."""
        return PackedAttention(self, step)

    def split_qkv(self, heads: torch.Tensor) -> QKV:
        """[T', H + 2 Hkv, D] by kind."""
        queries, keys = self.head_counts[0], sum(self.head_counts)
        return QKV(heads[:, :queries], heads[:, queries:keys], heads[:, keys:])


class StepAttention(ABC):
    """One step over a backend, which never sees padding."""

    def __init__(self, stage: StageAttention, positions: torch.Tensor) -> None:
        """`positions` int64[T'] are the step's."""
        self._stage, self._positions = stage, positions
        self._rotation: Rotation | None = None

    @abstractmethod
    def rotate_and_cache(
        self, layer: int, heads: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        """Rotate queries and keys [T', H + 2 Hkv, D] by their positions if there is a rotary
        embedding, and write keys and values to the layer's cache if there is one.

        `heads` may be overwritten; on CUDA the result is in `out`, of their shape, where given.
        """

    @abstractmethod
    def attend(self, layer: int, heads: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        """[T', H, D], zeros for padding: what the rotated `heads` attend to, all of the step.

        `out` [T, H, D] takes it where given; only for backends that are graph-safe.
        """

    def attend_in_last_layer(
        self, layer: int, heads: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden` [T', hidden_size] and what its `heads` attend to, [T', H, D]: both for the
        tokens whose final states are requested, where these are fewer."""
        return hidden, self.attend(layer, heads)

    def _rotated(self, heads: torch.Tensor) -> QKV:
        rotary = self._stage.rotary
        if rotary is None:
            return self._stage.split_qkv(heads)
        if self._rotation is None:
            self._rotation = rotary(self._positions)
        num_heads, num_kv_heads = self._stage.head_counts
        rotated = rotate(heads[:, :-num_kv_heads], self._rotation)
        return QKV(rotated[:, :num_heads], rotated[:, num_heads:], heads[:, -num_kv_heads:])


class PackedAttention(StepAttention):
    """Each token attends to all of its text."""

    def __init__(self, stage: StageAttention, step: PackedStep) -> None:
        super().__init__(stage, step.positions)
        self._total = step.num_tokens
        self._plan = stage.backend.plan_packed(step)

    def rotate_and_cache(
        self, layer: int, heads: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        return self._rotated(heads)

    def attend(self, layer: int, heads: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        attended = self._stage.backend.attend_packed(*heads.first(self._total), self._plan)
        return _lengthened(attended, len(heads.queries))


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
        self, layer: int, heads: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        stage, cache = self._stage, self._stage.caches[layer]
        if heads.is_cuda and stage.rotary is not None:
            out = heads if out is None else out
            table, num_heads = stage.rotary.table, stage.head_counts[0]
            _rotate_and_cache_fused(heads, table, num_heads, cache, self._step, out)
            return stage.split_qkv(out)
        rotated = self._rotated(heads)
        _, keys, values = rotated.first(self._step.num_tokens)
        stage.backend.write_kv(keys, values, cache, self._plan)
        return rotated

    def attend(self, layer: int, heads: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        backend, cache = self._stage.backend, self._stage.caches[layer]
        queries, keys, values = heads.first(self._step.num_tokens)
        attended = backend.attend_paged(queries, keys, values, cache, self._plan, out)
        return attended if out is not None else _lengthened(attended, len(heads.queries))

    def attend_in_last_layer(
        self, layer: int, heads: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        last = self._last_tokens()
        if last is None:
            return super().attend_in_last_layer(layer, heads, hidden)
        return hidden.index_select(0, last.indices), self._attend_last_tokens(layer, heads, last)

    def _attend_last_tokens(self, layer: int, heads: QKV, last: LastTokens) -> torch.Tensor:
        """[E', H, D]: what the rotated heads of `last` attend to."""
        own = heads.at(last.indices)
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
    heads: torch.Tensor,
    table: torch.Tensor,
    num_heads: int,
    cache: LayerCache,
    step: PagedStep,
    out: torch.Tensor,
) -> None:
    """On CUDA, in one kernel: rotate queries and keys by the rotary `table`, and write keys and
    values to the cache."""
    # Imported here, because Triton is not there on every machine without a GPU.
    from workers.kernels.attention.rotate_and_cache import rotate_and_cache  # noqa: PLC0415

    caches = cache.keys, cache.values
    rotate_and_cache(heads, table, step.positions, step.kv_indices, *caches, num_heads, out)
