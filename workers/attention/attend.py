"""A step's attention as its model calls it: from packed, unrotated heads to what was attended."""

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, LayerCache
from workers.layers.rotary import RotaryEmbedding, Rotation, rotate
from workers.step_tensors import StepTensors


class StepAttention:
    """One step over a backend (see `workers.models.base.Attend`).

    `caches` are the stage's, by local layer; none for an encoder. The backend never sees padding.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        step: StepTensors,
        num_heads: int,
        num_kv_heads: int,
        caches: list[LayerCache] | None,
    ) -> None:
        self._backend, self._step, self._caches = backend, step, caches
        self._num_heads, self._num_kv_heads = num_heads, num_kv_heads
        self._plan = backend.plan(step)
        self._rotation: Rotation | None = None

    def __call__(
        self, layer: int, heads: torch.Tensor, rotary: RotaryEmbedding | None
    ) -> torch.Tensor:
        cache = self._caches[layer] if self._caches else None
        if heads.is_cuda and rotary is not None and cache is not None:
            self._rotate_and_cache(heads, rotary, cache)
            queries, keys, values = self._split(heads)
            return self._backend.forward(queries, keys, values, cache, self._plan)
        total = self._step.num_tokens
        padding = len(heads) - total
        queries, keys, values = (part[:total] for part in self._rotated(heads, rotary))
        if cache is not None:
            self._backend.write_kv(keys, values, cache, self._plan)
        attended = self._backend.forward(queries, keys, values, cache, self._plan)
        return F.pad(attended, (0, 0, 0, 0, 0, padding)) if padding else attended

    def _rotated(
        self, heads: torch.Tensor, rotary: RotaryEmbedding | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, those that turn turned."""
        if rotary is None:
            return self._split(heads)
        if self._rotation is None:
            self._rotation = rotary(self._step.positions)
        *_, values = self._split(heads)
        turned = rotate(heads[:, : -self._num_kv_heads], self._rotation)
        return turned[:, : self._num_heads], turned[:, self._num_heads :], values

    def _split(self, heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        keys = self._num_heads + self._num_kv_heads
        return heads[:, : self._num_heads], heads[:, self._num_heads : keys], heads[:, keys:]

    def _rotate_and_cache(
        self, heads: torch.Tensor, rotary: RotaryEmbedding, cache: LayerCache
    ) -> None:
        """The same in place, and the cache written, in one kernel."""
        # Imported here, because Triton is not there on every machine without a GPU.
        from workers.kernels.rotary import rotate_and_cache  # noqa: PLC0415

        assert self._step.slot_mapping is not None, "a cache comes with places in it"
        rotate_and_cache(
            heads,
            rotary.table,
            self._step.positions,
            self._step.slot_mapping,
            cache.keys,
            cache.values,
            self._num_heads,
            self._num_kv_heads,
        )
