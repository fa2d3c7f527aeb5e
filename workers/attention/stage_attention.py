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
    """A layer's parts. Layers of one kind share the backend and any rotary embedding.

    counts  numbers of query heads, and of KV heads that it projects: none with another's cache
    sinks   float32[H]
    cache   to which it attends, and `table` the block table of that; None for an encoder
    """

    backend: AttentionBackend
    rotary: RotaryEmbedding | None
    counts: tuple[int, int]
    qk_norm: QKNorm | None
    vectors: DistanceVectors | None = None
    sinks: torch.Tensor | None = None
    cache: LayerCache | None = None
    table: int = 0

    def split_qkv(self, qkv: torch.Tensor) -> QKV:
        """Split [T', H + 2 Hkv, D] into queries, keys and values."""
        queries, keys = self.counts[0], sum(self.counts)
        return QKV(qkv[:, :queries], qkv[:, queries:keys], qkv[:, keys:])

    @property
    def own_cache(self) -> LayerCache:
        """The cache of a decoder's layer."""
        assert self.cache is not None, "a decoder's layers have one"
        return self.cache


@dataclass(frozen=True, slots=True)
class StageAttention:
    """Attention of a stage's layers, for any step.

    position_bias  [H, 2 * L - 1] (see `AttentionBackend.plan_packed`); None for most encoders
    """

    layers: Sequence[LayerAttention]
    position_bias: torch.Tensor | None = None

    def over(
        self,
        step: PagedStep | PackedStep,
        last_tokens: Callable[[], LastTokens | None] = lambda: None,
    ) -> "StepAttention":
        """Attention over the rows of a step. The last layer of a paged one calls `last_tokens`, and
        only the tokens that it returns attend there; that of a packed one goes by `read`."""
        return StepAttention(self, step, last_tokens)

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
        """How backends that attend shared prefixes once divide them, if all do in the same way."""
        tilers = {layer.backend.prefix_tiler for layer in self.layers} - {None}
        return tilers.pop() if len(tilers) == 1 else None


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

        Each if the layer has the parts for it: one with another's cache has queries alone. `qkv`
        may be overwritten. On CUDA the result is in `out`, of the same shape, if given.
        """
        own = self._stage.layers[layer]
        rotary, norm, step = own.rotary, own.qk_norm, self._seen_by(own.table)
        caches = isinstance(step, PagedStep) and own.counts[1] > 0
        if qkv.is_cuda and (rotary is not None or caches):
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.attention.kv_cache import (  # noqa: PLC0415
                KVTarget,
                rotate_and_cache,
            )

            target = None
            if isinstance(step, PagedStep) and caches:
                target = KVTarget(step.kv_indices, *own.own_cache)
            out = qkv if out is None else out
            rotation = None if rotary is None else rotary.on_device
            rotate_and_cache(qkv, rotation, step.positions, own.counts[0], out, target, norm)
            return own.split_qkv(out)
        rotated = self._rotated(own, qkv)
        if isinstance(step, PagedStep) and caches:
            own.backend.write_kv(rotated.first(self._total), own.own_cache, step.kv_indices)
        return rotated

    def attend(self, layer: int, qkv: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        """The attention output of all tokens, [T', H, D], zero for padding. `qkv` are rotated. If
        given, `out` [T, H, D] receives it and is returned; only for graph-safe backends."""
        parts, own = self._stage.layers[layer], qkv.first(self._total)
        backend, plan = parts.backend, self._plan(parts.backend, parts.table)
        if isinstance(self._step, PagedStep):
            attended = backend.attend_paged(own, parts.own_cache, plan, out, parts.sinks)
        elif parts.vectors is not None:
            attended = backend.attend_disentangled(own, plan, parts.vectors)
        else:
            attended = backend.attend_packed(own, plan)
        return _lengthened(attended, len(qkv.queries))

    def attend_in_last_layer(
        self, layer: int, qkv: QKV, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden` [T', hidden_size] and the attention output [T', H, D]. Both are for the last
        tokens, or those that are pooled, alone if the step's results depend on no others."""
        if isinstance(self._step, PackedStep):
            attended, read = self.attend(layer, qkv), self._step.read
            if read is None:
                return hidden, attended
            return hidden.index_select(0, read), attended.index_select(0, read)
        last = self._last_tokens()
        if last is None:
            return hidden, self.attend(layer, qkv)
        hidden, own = hidden.index_select(0, last.indices), qkv.at(last.indices)
        if not (count := last.rows.num_tokens):
            return hidden, own.queries
        parts = self._stage.layers[layer]
        plan = parts.backend.plan_paged(last.rows.of_table(parts.table))
        seen = own.first(count), parts.own_cache, plan
        attended = parts.backend.attend_paged(*seen, sinks=parts.sinks)
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

    def _rotated(self, layer: LayerAttention, qkv: torch.Tensor) -> QKV:
        """Without fused kernels."""
        rotary, norm, num_heads = layer.rotary, layer.qk_norm, layer.counts[0]
        split = layer.split_qkv(qkv)
        if norm is None and rotary is None:
            return split
        values = split.values
        if norm is not None and norm.values:
            values = F.rms_norm(values, values.shape[2:], eps=norm.eps)
        heads = qkv[:, : sum(layer.counts)]
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
        return QKV(heads[:, :num_heads], heads[:, num_heads:], values)


def _normed(heads: torch.Tensor, num_heads: int, norm: QKNorm) -> torch.Tensor:
    """Queries and keys [T', H + Hkv, D], normalised in rows as long as the norms' weights."""
    both = (heads[:, :num_heads], norm.query), (heads[:, num_heads:], norm.key)
    return torch.cat(
        [
            rms_norm(part.reshape(-1, len(own)), own, norm.eps).view(part.shape)
            for part, own in both
        ],
        dim=1,
    )


def _lengthened(attended: torch.Tensor, count: int) -> torch.Tensor:
    """[T, H, D] with zeros added up to `count` tokens."""
    missing = count - len(attended)
    return F.pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended
