"""Attention between the halves of a layer: norms, rotation, the KV cache's write, the backend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from workers.attention.base import QKV, AttentionBackend, LayerCache
from workers.attention.distance_vectors import DistanceVectors
from workers.attention.prefix_tiles import PrefixTiler
from workers.layers.norm import QKNorm, rms_norm
from workers.layers.rotary import RotaryEmbedding, Rotation, rotate
from workers.step.packed_step import PackedStep
from workers.step.paged_step import LastTokens, PagedStep


class LayerAttention(NamedTuple):
    """A layer's parts. Layers of one kind share the backend and any rotary embedding. `sinks` are
    float32[H], `table` is the block table of its keys and values."""

    backend: AttentionBackend
    rotary: RotaryEmbedding | None
    qk_norm: QKNorm | None
    vectors: DistanceVectors | None = None
    sinks: torch.Tensor | None = None
    table: int = 0


@dataclass(frozen=True, slots=True)
class StageAttention:
    """Attention of a stage's layers, for any step.

    head_counts    the numbers of query and of KV heads
    caches         one a layer; none for an encoder
    position_bias  [H, 2 * L - 1] (see `AttentionBackend.plan_packed`); None for most encoders
    """

    head_counts: tuple[int, int]
    layers: Sequence[LayerAttention]
    caches: Sequence[LayerCache]
    position_bias: torch.Tensor | None = None

    def over(
        self,
        step: PagedStep | PackedStep,
        last_tokens: Callable[[], LastTokens | None] = lambda: None,
    ) -> "StepAttention":
        """Attention over the rows of a step. The last layer of a paged one calls `last_tokens`, and
        only the tokens that it returns attend there."""
        return StepAttention(self, step, last_tokens)

    def split_qkv(self, qkv: torch.Tensor) -> QKV:
        """Split [T', H + 2 Hkv, D] into queries, keys and values."""
        queries, keys = self.head_counts[0], sum(self.head_counts)
        return QKV(qkv[:, :queries], qkv[:, queries:keys], qkv[:, keys:])

    @property
    def graph_safe(self) -> bool:
        """Whether decode steps can be captured (see `Capabilities`)."""
        return all(layer.backend.capabilities.graph_safe for layer in self.layers)

    @property
    def chunks_graph_safe(self) -> bool:
        """Likewise for steps with prompts."""
        return all(layer.backend.capabilities.chunks_graph_safe for layer in self.layers)

    @property
    def prefix_tiler(self) -> PrefixTiler | None:
        """How backends that attend shared prefixes once divide them, all in the same way."""
        tilers = (layer.backend.prefix_tiler for layer in self.layers)
        return next((tiler for tiler in tilers if tiler is not None), None)


class StepAttention:
    """Attention of one step, of which the backend never sees padding.

    A token attends to its row's context in the layer's cache, in a packed step to all of its text.
    """

    def __init__(
        self,
        stage: StageAttention,
        step: PagedStep | PackedStep,
        last_tokens: Callable[[], LastTokens | None],
    ) -> None:
        self._stage, self._step, self._last_tokens = stage, step, last_tokens
        self._total = step.num_tokens
        self._rotations: dict[RotaryEmbedding, Rotation] = {}
        self._steps: dict[int, PagedStep | PackedStep] = {}
        self._plans: dict[tuple[AttentionBackend, int], Any] = {}

    def rotate_and_cache(
        self, layer: int, qkv: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        """Normalise and rotate the queries and keys of `qkv` [T', H + 2 Hkv, D], and cache.

        Each if the layer has the parts for it. `qkv` may be overwritten. On CUDA the result is in
        `out`, of the same shape, if given.
        """
        stage, own = self._stage, self._stage.layers[layer]
        backend, rotary, norm, step = own.backend, own.rotary, own.qk_norm, self._seen_by(own.table)
        if qkv.is_cuda and (rotary is not None or isinstance(step, PagedStep)):
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.attention.kv_cache import (  # noqa: PLC0415
                KVTarget,
                rotate_and_cache,
            )

            target = None
            if isinstance(step, PagedStep):
                target = KVTarget(step.kv_indices, *stage.caches[layer])
            out = qkv if out is None else out
            heads = stage.head_counts[0]
            table, factors = (
                (None, None) if rotary is None else (rotary.table, rotary.query_factors)
            )
            rotate_and_cache(
                *(qkv, table, step.positions, heads, out, target, norm), query_factors=factors
            )
            return stage.split_qkv(out)
        rotated = self._rotated(layer, qkv)
        if isinstance(step, PagedStep):
            new, cache = rotated.first(self._total), stage.caches[layer]
            backend.write_kv(new, cache, step.kv_indices)
        return rotated

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        """The attention output of all tokens, [T', H, D], zero for padding. `qkv` are rotated. If
        given, `out` [T, H, D] receives it and is returned; only for graph-safe backends."""
        backend, _, _, vectors, sinks, table = self._stage.layers[layer]
        own, plan = qkv.first(self._total), self._plan(backend, table)
        if isinstance(self._step, PagedStep):
            attended = backend.attend_paged(own, self._stage.caches[layer], plan, out, sinks)
        elif vectors is not None:
            attended = backend.attend_disentangled(own, plan, vectors)
        else:
            attended = backend.attend_packed(own, plan)
        return _lengthened(attended, len(qkv.queries))

    def attend_in_last_layer(
        self, layer: int, qkv: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden` [T', hidden_size] and the attention output [T', H, D]. Both are for the last
        tokens alone if the step's results depend on no others."""
        last = self._last_tokens()
        if last is None:
            return hidden, self.attend(layer, qkv)
        hidden, own = hidden.index_select(0, last.indices), qkv.at(last.indices)
        if not (count := last.rows.num_tokens):
            return hidden, own.queries
        backend, *_, sinks, table = self._stage.layers[layer]
        plan, cache = backend.plan_paged(last.rows.of_table(table)), self._stage.caches[layer]
        attended = backend.attend_paged(own.first(count), cache, plan, sinks=sinks)
        return hidden, _lengthened(attended, len(own.queries))

    def _plan(self, backend: AttentionBackend, table: int) -> Any:
        """The backend's plan of the step for a table, made when the first layer needs it."""
        if (backend, table) not in self._plans:
            step = self._seen_by(table)
            self._plans[backend, table] = (
                backend.plan_paged(step)
                if isinstance(step, PagedStep)
                else backend.plan_packed(step, self._stage.position_bias)
            )
        return self._plans[backend, table]

    def _seen_by(self, table: int) -> PagedStep | PackedStep:
        """The step as layers of a table see it."""
        if table not in self._steps:
            step = self._step
            self._steps[table] = step.of_table(table) if isinstance(step, PagedStep) else step
        return self._steps[table]

    def _rotated(self, layer: int, qkv: torch.Tensor) -> QKV:
        """Without fused kernels."""
        _, rotary, norm, *_ = self._stage.layers[layer]
        split, num_heads = self._stage.split_qkv(qkv), self._stage.head_counts[0]
        if norm is None and rotary is None:
            return split
        heads = qkv[:, : sum(self._stage.head_counts)]
        if norm is not None and not norm.rotated:
            heads = _normed(heads, num_heads, norm)
        if rotary is not None:
            if rotary not in self._rotations:
                self._rotations[rotary] = rotary(self._step.positions)
            heads = rotate(heads, self._rotations[rotary])
        if norm is not None and norm.rotated:
            heads = _normed(heads, num_heads, norm)
        if rotary is not None and rotary.query_factors is not None:
            heads[:, :num_heads] *= rotary.query_factors[self._step.positions, None, None]
        return QKV(heads[:, :num_heads], heads[:, num_heads:], split.values)


def _normed(heads: torch.Tensor, num_heads: int, norm: QKNorm) -> torch.Tensor:
    """Queries and keys [T', H + Hkv, D], normalised in rows as long as the norms' weights."""
    both = (heads[:, :num_heads], norm.query), (heads[:, num_heads:], norm.key)
    return torch.cat(
        [
            rms_norm(part.reshape(len(part), -1, len(own)), own, norm.eps).view(part.shape)
            for part, own in both
        ],
        dim=1,
    )


def _lengthened(attended: torch.Tensor, count: int) -> torch.Tensor:
    """[T, H, D] with zeros added up to `count` tokens."""
    missing = count - len(attended)
    return F.pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended
