"""A step's attention as its model calls it: from packed, unrotated heads to what was attended."""

import torch
import torch.nn.functional as F

from workers.attention.base import AttentionBackend, LayerCache
from workers.layers.rotary import RotaryEmbedding, Rotation, rotate
from workers.step_tensors import StepTensors


class StepAttention:
    """One step over a backend (see `workers.models.base.Attend`).

    `head_counts` are the numbers of query and of KV heads; `caches` the stage's, by local layer,
    none for an encoder. The backend never sees padding.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        step: StepTensors,
        head_counts: tuple[int, int],
        caches: list[LayerCache] | None,
    ) -> None:
        self._backend, self._step, self._caches = backend, step, caches
        self._head_counts = head_counts
        self._plan = backend.plan(step)
        self._rotation: Rotation | None = None

    def __call__(
        self, layer: int, heads: torch.Tensor, rotary: RotaryEmbedding | None
    ) -> torch.Tensor:
        cache = self._caches[layer] if self._caches else None
        if heads.is_cuda and rotary is not None and cache is not None:
            places = self._step.slot_mapping
            assert places is not None, "a cache comes with places in it"
            rotate_into_cache(heads, rotary, cache, self._step.positions, places, self._head_counts)
            split = split_heads(heads, self._head_counts)
            return self._backend.forward(*split, cache, self._plan)
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
            return split_heads(heads, self._head_counts)
        if self._rotation is None:
            self._rotation = rotary(self._step.positions)
        num_heads, num_kv_heads = self._head_counts
        turned = rotate(heads[:, :-num_kv_heads], self._rotation)
        return turned[:, :num_heads], turned[:, num_heads:], heads[:, -num_kv_heads:]


def split_heads(
    heads: torch.Tensor, head_counts: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of [T, H + 2 Hkv, D]; `head_counts` is (H, Hkv)."""
    queries, keys = head_counts[0], sum(head_counts)
    return heads[:, :queries], heads[:, queries:keys], heads[:, keys:]


def rotate_into_cache(
    heads: torch.Tensor,
    rotary: RotaryEmbedding,
    cache: LayerCache,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_counts: tuple[int, int],
) -> None:
    """On CUDA, in one kernel: turn the queries and keys of `heads` [T', H + 2 Hkv, D] in place, and
    write keys and values to the cache."""
    # Imported here, because Triton is not there on every machine without a GPU.
    from workers.kernels.rotary import rotate_and_cache  # noqa: PLC0415

    rotate_and_cache(
        heads,
        rotary.table,
        positions,
        slot_mapping,
        cache.keys,
        cache.values,
        *head_counts,
    )
