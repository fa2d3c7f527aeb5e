"""Attention between the two halves of a layer: normalises and rotates queries and keys, writes the
KV cache, and calls the backend."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, LayerCache, SharesPrefixes
from workers.attention.prefix_tiles import PrefixTiler
from workers.layers.norm import QKNorm, rms_norm
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


class KindAttention(NamedTuple):
    """What layers of one kind share: a backend, and what rotates queries and keys; `rotary` is None
    without rotary embedding."""

    backend: AttentionBackend
    rotary: RotaryEmbedding | None


class LayerAttention(NamedTuple):
    """What a layer has of its own: the number of its kind, and norms if the model has them."""

    kind: int
    qk_norm: QKNorm | None


@dataclass(frozen=True, slots=True)
class StageAttention:
    """Attention of a stage's layers, for any step.

    head_counts    the numbers of query and of KV heads
    kinds          the model's kinds of layers
    layers         the stage's layers
    caches         one a layer; none for an encoder
    position_bias  [H, 2 * L - 1] (see `AttentionBackend.plan_packed`); None for most encoders
    """

    head_counts: tuple[int, int]
    kinds: Sequence[KindAttention]
    layers: Sequence[LayerAttention]
    caches: Sequence[LayerCache]
    position_bias: torch.Tensor | None = None

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

    def of(self, layer: int) -> KindAttention:
        """What a layer shares with the others of its kind."""
        return self.kinds[self.layers[layer].kind]

    @property
    def graph_safe(self) -> bool:
        """Whether every kind's decode steps can be captured (see `Capabilities`)."""
        return all(kind.backend.capabilities.graph_safe for kind in self.kinds)

    @property
    def chunks_graph_safe(self) -> bool:
        """Likewise for steps with prompts."""
        return all(kind.backend.capabilities.chunks_graph_safe for kind in self.kinds)

    @property
    def prefix_tiler(self) -> PrefixTiler | None:
        """How backends that attend shared prefixes once divide them, the same for all kinds."""
        backends = [kind.backend for kind in self.kinds]
        sharing = [backend for backend in backends if isinstance(backend, SharesPrefixes)]
        tilers = [backend.prefix_tiler for backend in sharing]
        return next((tiler for tiler in tilers if tiler is not None), None)


class StepAttention(ABC):
    """Attention of one step. The backend never sees padding."""

    def __init__(self, stage: StageAttention, positions: torch.Tensor) -> None:
        """`positions` int64[T'] are those of the step's tokens."""
        self._stage, self._positions = stage, positions
        self._rotations: dict[int, Rotation] = {}
        self._plans: dict[int, Any] = {}

    @abstractmethod
    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        """Normalise the queries and keys of `qkv` [T', H + 2 Hkv, D] if the layer has norms, rotate
        them by their positions if it has a rotary embedding, and write keys and values to the
        layer's cache if there is one.

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

    @abstractmethod
    def _new_plan(self, backend: AttentionBackend) -> Any:
        """The step's plan for the layers of a backend."""

    def _plan(self, layer: int) -> Any:
        """The step's plan for layers of this one's kind, made when the first of them needs it."""
        kind = self._stage.layers[layer].kind
        if kind not in self._plans:
            self._plans[kind] = self._new_plan(self._stage.kinds[kind].backend)
        return self._plans[kind]

    def _rotated(self, layer: int, qkv: torch.Tensor) -> QKV:
        """Without fused kernels."""
        kind, norm = self._stage.layers[layer]
        rotary = self._stage.kinds[kind].rotary
        split = self._stage.split_qkv(qkv)
        if norm is not None:
            heads = torch.cat(_normed(split, norm), dim=1)
        elif rotary is None:
            return split
        else:
            heads = qkv[:, : sum(self._stage.head_counts)]
        if rotary is not None:
            if kind not in self._rotations:
                self._rotations[kind] = rotary(self._positions)
            heads = rotate(heads, self._rotations[kind])
        num_heads = self._stage.head_counts[0]
        return QKV(heads[:, :num_heads], heads[:, num_heads:], split.values)


class PackedAttention(StepAttention):
    """Each token attends to all of its text, or to those within its layer's window."""

    def __init__(self, stage: StageAttention, step: PackedStep) -> None:
        super().__init__(stage, step.positions)
        self._step, self._total = step, step.num_tokens

    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        kind, norm = self._stage.layers[layer]
        rotary = self._stage.kinds[kind].rotary
        if not qkv.is_cuda or rotary is None:
            return self._rotated(layer, qkv)
        # Imported here, because a machine without a GPU may have no Triton.
        from workers.kernels.attention.rotate_and_cache import rotate  # noqa: PLC0415

        out = qkv if out is None else out
        rotate(qkv, rotary.table, self._step.positions, self._stage.head_counts[0], out, norm)
        return self._stage.split_qkv(out)

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        backend = self._stage.of(layer).backend
        attended = backend.attend_packed(*qkv.first(self._total), self._plan(layer))
        return _lengthened(attended, len(qkv.queries))

    def _new_plan(self, backend: AttentionBackend) -> Any:
        return backend.plan_packed(self._step, self._stage.position_bias)


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
        backend, rotary = self._stage.of(layer)
        if qkv.is_cuda and rotary is not None:
            out = qkv if out is None else out
            self._rotate_and_cache_fused(layer, qkv, rotary.table, out)
            return self._stage.split_qkv(out)
        rotated = self._rotated(layer, qkv)
        _, keys, values = rotated.first(self._step.num_tokens)
        backend.write_kv(keys, values, self._stage.caches[layer], self._plan(layer))
        return rotated

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        backend, cache = self._stage.of(layer).backend, self._stage.caches[layer]
        queries, keys, values = qkv.first(self._step.num_tokens)
        attended = backend.attend_paged(queries, keys, values, cache, self._plan(layer), out)
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
        backend, cache = self._stage.of(layer).backend, self._stage.caches[layer]
        queries, keys, values = own.first(last.rows.num_tokens)
        plan = backend.plan_paged(last.rows)
        attended = backend.attend_paged(queries, keys, values, cache, plan)
        return _lengthened(attended, len(own.queries))

    def _rotate_and_cache_fused(
        self, layer: int, qkv: torch.Tensor, table: torch.Tensor, out: torch.Tensor
    ) -> None:
        """On CUDA, in one kernel."""
        # Imported here, because a machine without a GPU may have no Triton.
        from workers.kernels.attention.rotate_and_cache import rotate_and_cache  # noqa: PLC0415

        stage, step, cache = self._stage, self._step, self._stage.caches[layer]
        rotate_and_cache(
            qkv,
            table,
            step.positions,
            step.kv_indices,
            cache.keys,
            cache.values,
            stage.head_counts[0],
            out,
            stage.layers[layer].qk_norm,
        )

    def _new_plan(self, backend: AttentionBackend) -> Any:
        return backend.plan_paged(self._step)


def _lengthened(attended: torch.Tensor, count: int) -> torch.Tensor:
    """[T, H, D] with zeros added up to `count` tokens."""
    missing = count - len(attended)
    return F.pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended


def _normed(qkv: QKV, norm: QKNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, each attention head normalised by itself."""
    return (
        rms_norm(qkv.queries, norm.query, norm.eps),
        rms_norm(qkv.keys, norm.key, norm.eps),
    )
