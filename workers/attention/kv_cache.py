"""The paged key-value cache of one stage."""

from itertools import product

import numpy as np
import torch

from workers.attention.base import LayerCache
from workers.attention.fp8_numbers import FP8
from workers.contract.cache_layout import CacheLayout, Place
from workers.device.transfer import to_device
from workers.step.rows import IntArray


class KVCache:
    """Keys and values of a stage's layers in blocks of planes, in one tensor.

    That is [planes, 2, num_blocks + 1, block_size * plane_numbers]; in FP8 their scales are in
    others, one a shape of keys.

    layers  of each layer that keeps keys and values: views of its parts of a plane

    Layers of different block tables (`CacheLayout.places`) have the same memory. In a layer with
    one of n parts of a plane, block b of its table is page b * n (`CacheLayout.table_parts`): its
    pages begin with its own part of block 0, and are as long as a part.

    Padding rows write to block `num_blocks`, which no request has. Memory that is read before it is
    written holds 0, not NaN.
    """

    def __init__(
        self,
        layout: CacheLayout,
        layers: range,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`layers` are all of the stage's."""
        self.num_blocks, self._size = num_blocks, layout.block_size
        planes = layout.block_planes(layers), 2, num_blocks + 1
        shape = (*planes, self._size * layout.plane_numbers)
        stored = torch.uint8 if dtype == FP8 else dtype
        self._parts = [torch.zeros(shape, dtype=stored, device=device)]
        self._scales: dict[tuple[int, int], torch.Tensor] = {}
        if dtype == FP8:
            self._scales = {
                (parts, heads): torch.zeros(
                    (planes[0], 1, num_blocks + 1, self._size * heads * parts),
                    dtype=torch.int32,
                    device=device,
                )
                for parts, heads in {(group.a_plane, group.kv_heads) for group in layout.groups}
            }
            self._parts += self._scales.values()
        places = layout.places(layers).items()
        self.layers = {layer: self._layer(place, dtype) for layer, place in places}

    def _layer(self, place: Place, dtype: torch.dtype) -> LayerCache:
        heads, head_dim = place.group.kv_heads, place.group.head_dim
        plane, skipped = self._parts[0][place.plane].view(dtype), place.part * self._size
        keys, values = (
            own.flatten()[skipped * heads * head_dim :].view(-1, self._size, heads, head_dim)
            for own in plane
        )
        scales = self._scales.get((place.group.a_plane, heads))
        if scales is not None:
            own = scales[place.plane].flatten()[skipped * heads :]
            scales = own.view(-1, heads, self._size)
        return LayerCache(keys, values, scales)

    def copy_blocks(self, copies: bytes) -> None:
        """Copy whole blocks, in this order: `DecodeStep.block_copies`."""
        pairs = np.frombuffer(bytearray(copies), np.int32).reshape(-1, 2)  # torch wants it writable
        if (device := self._parts[0].device).type == "cuda":
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.attention.kv_cache import copy_blocks  # noqa: PLC0415

            for launch in _launches(pairs):
                (on_device,) = to_device([launch], device)
                for part in self._parts:
                    copy_blocks(part, on_device)
            return
        for part, (source, target) in product(self._parts, pairs.tolist()):
            part[:, :, target] = part[:, :, source]

    def clear(self, blocks: int) -> None:
        """Forget what the first `blocks` blocks hold."""
        for part in self._parts:
            part[:, :, :blocks].zero_()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


def _launches(pairs: IntArray) -> list[IntArray]:
    """`pairs` int32[N, 2] (from, to) together, or one by one if their order matters. A block freed
    and taken again within a step may be copied from and then to."""
    sources, targets = map(set, pairs.T.tolist())
    together = len(targets) == len(pairs) and sources.isdisjoint(targets)
    return [pairs] if together else [*pairs[:, None]]
