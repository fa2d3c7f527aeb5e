"""The paged key-value cache of one stage."""

from collections.abc import Iterator

import numpy as np
import torch

from workers.attention.base import LayerCache
from workers.contract.model_config import ModelConfig
from workers.device.transfer import to_device
from workers.step.rows import IntArray


def kv_block_bytes(config: ModelConfig, layers: int, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of `block_size` tokens in all `layers` layers, keys and values."""
    return 2 * layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of a stage's layers, each [num_blocks + 1, block_size, kv_heads, head_dim],
    in one tensor.

    A block id addresses the same block in every layer. Padding rows write to block `num_blocks`,
    which no request has. Memory that is read before it is written holds 0, not NaN.
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
        block = (block_size, config.num_kv_heads, config.head_dim)
        shape = (num_layers, 2, num_blocks + 1, *block)
        self._cached = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [LayerCache(*layer) for layer in self._cached]

    def copy_blocks(self, copies: bytes) -> None:
        """Copy blocks in every layer, in this order: `DecodeStep.block_copies`."""
        pairs = np.frombuffer(bytearray(copies), np.int32).reshape(-1, 2)  # torch wants it writable
        if self._cached.is_cuda:
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.attention.kv_cache import copy_blocks  # noqa: PLC0415

            for independent in _independent(pairs):
                copy_blocks(self._cached, *to_device([independent], self._cached.device))
            return
        for source, target in pairs.tolist():
            self._cached[:, :, target] = self._cached[:, :, source]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers, including the block for padding."""
        return self._cached.nbytes


def _independent(pairs: IntArray) -> Iterator[IntArray]:
    """`pairs` int32[N, 2] (from, to) in runs within which any order gives the same. A block freed
    and taken again within a step may be copied from and then to."""
    first, sources, targets = 0, set[int](), set[int]()
    for index, (source, target) in enumerate(pairs.tolist()):
        if source in targets or target in targets or target in sources:
            yield pairs[first:index]
            first, sources, targets = index, set[int](), set[int]()
        sources.add(source)
        targets.add(target)
    yield pairs[first:]
