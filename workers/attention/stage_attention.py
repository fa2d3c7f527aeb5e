"""A step's attention between the halves of a layer: from packed, unrotated heads to what was
attended."""

from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, LayerCache
from workers.layers.rotary import RotaryEmbedding, Rotation, rotate
from workers.step.tensors import Ends, StepTensors


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
    an encoder; `rotary` turns queries and keys where the model has it.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        head_counts: tuple[int, int],
        caches: list[LayerCache] | None,
        rotary: RotaryEmbedding | None,
    ) -> None:
        self.backend, self.head_counts = backend, head_counts
        self.caches, self.rotary = caches, rotary

    def of(self, step: StepTensors) -> "StepAttention":
        """This attention over the rows of a step."""
        return StepAttention(self, step)

    def split_qkv(self, heads: torch.Tensor) -> QKV:
        """[T', H + 2 Hkv, D] by kind."""
        queries, keys = self.head_counts[0], sum(self.head_counts)
        return QKV(heads[:, :queries], heads[:, queries:keys], heads[:, keys:])


class StepAttention:
    """One step over a backend, which never sees padding. Each layer turns its heads, then attends,
    either for all tokens or for some ends alone."""

    def __init__(self, stage: StageAttention, step: StepTensors) -> None:
        self._stage, self._step = stage, step
        self._rotation: Rotation | None = None

    def rotate_and_cache(
        self, layer: int, heads: torch.Tensor, out: torch.Tensor | None = None
    ) -> QKV:
        """Turn queries and keys [T', H + 2 Hkv, D] by their positions if there is a rotary
        embedding, and write keys and values to the layer's cache if there is one.

        `heads` may be overwritten; on CUDA the result is in `out`, of their shape, where given.
        """
        stage, step = self._stage, self._step
        cache = self._cache(layer)
        if heads.is_cuda and stage.rotary is not None and cache is not None:
            assert step.kv_indices is not None, "a cache comes with places in it"
            out = heads if out is None else out
            _rotate_and_cache_fused(heads, stage, cache, step.positions, step.kv_indices, out)
            return stage.split_qkv(out)
        rotated = self._rotated(heads)
        if cache is not None:
            total = step.num_tokens
            _, keys, values = rotated.first(total)
            stage.backend.write_kv(keys, values, cache, self._plan)
        return rotated

    def attend(self, layer: int, heads: QKV, out: torch.Tensor | None = None) -> torch.Tensor:
        """[T', H, D], zeros for padding: what the rotated `heads` attend to, all of the step.

        `out` [T, H, D] takes it where given; only for backends that are graph-safe.
        """
        total = self._step.num_tokens
        queries, keys, values = heads.first(total)
        cache = self._cache(layer)
        attended = self._stage.backend.forward(queries, keys, values, cache, self._plan, out)
        return attended if out is not None else _lengthened(attended, len(heads.queries))

    def attend_last_tokens(self, layer: int, heads: QKV, ends: Ends) -> torch.Tensor:
        """[E', H, D]: the same for `ends` alone, of all of the step's rotated `heads`."""
        own = heads.at(ends.positions)
        if not ends.rows.num_tokens:
            return own.queries
        queries, keys, values = own.first(ends.rows.num_tokens)
        backend, cache = self._stage.backend, self._cache(layer)
        attended = backend.forward(queries, keys, values, cache, backend.plan(ends.rows))
        return _lengthened(attended, len(own.queries))

    @cached_property
    def _plan(self) -> Any:
        return self._stage.backend.plan(self._step)

    def _cache(self, layer: int) -> LayerCache | None:
        return self._stage.caches[layer] if self._stage.caches else None

    def _rotated(self, heads: torch.Tensor) -> QKV:
        rotary = self._stage.rotary
        if rotary is None:
            return self._stage.split_qkv(heads)
        if self._rotation is None:
            self._rotation = rotary(self._step.positions)
        num_heads, num_kv_heads = self._stage.head_counts
        rotated = rotate(heads[:, :-num_kv_heads], self._rotation)
        return QKV(rotated[:, :num_heads], rotated[:, num_heads:], heads[:, -num_kv_heads:])


def _lengthened(attended: torch.Tensor, count: int) -> torch.Tensor:
    """[T, H, D] with zeros added up to `count` tokens."""
    missing = count - len(attended)
    return F.pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended


def _rotate_and_cache_fused(
    heads: torch.Tensor,
    stage: StageAttention,
    cache: LayerCache,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """On CUDA, in one kernel: turn queries and keys, and write keys and values to the cache."""
    # Imported here, because Triton is not there on every machine without a GPU.
    from workers.kernels.attention.rotate_and_cache import rotate_and_cache  # noqa: PLC0415

    assert stage.rotary is not None
    num_heads = stage.head_counts[0]
    caches = cache.keys, cache.values
    rotate_and_cache(heads, stage.rotary.table, positions, kv_indices, *caches, num_heads, out)
