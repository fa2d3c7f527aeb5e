"""The paged key-value cache of one stage."""

from itertools import product

import numpy as np
import torch

from workers.attention.base import LayerCache
from workers.attention.fp8_numbers import FP8
from workers.contract.model_config import ModelConfig
from workers.device.transfer import to_device
from workers.step.rows import IntArray


class KVCache:
    """Keys and values in blocks of `num_layers` layers.

    All are in one tensor, for each layer [num_blocks + 1, block_size, kv_heads, head_dim], in FP8
    their scales in another. Layers of different block tables (`CacheLayout.places`) share one of
    `layers`.

    Padding rows write to block `num_blocks`, which no request has. Memory that is read before it is
    written holds 0, not NaN.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        heads = config.num_kv_heads
        shape = (num_layers, 2, num_blocks + 1, block_size, heads, config.head_dim)
        stored = torch.uint8 if dtype == FP8 else dtype
        self._parts = [torch.zeros(shape, dtype=stored, device=device)]
        self.layers = [LayerCache(*layer) for layer in self._parts[0].view(dtype)]
        if dtype == FP8:
            shape = (num_layers, 1, num_blocks + 1, heads, block_size)
            scales = torch.zeros(shape, dtype=torch.int32, device=device)
            self._parts.append(scales)
            both = zip(self.layers, scales[:, 0], strict=True)
            self.layers = [layer._replace(scales=own) for layer, own in both]

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
