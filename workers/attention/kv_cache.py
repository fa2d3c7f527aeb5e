"""The paged key-value cache of one stage."""

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
        shape = (num_layers, 2, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        self._cached = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [LayerCache(*layer) for layer in self._cached]

    def copy_blocks(self, copies: bytes) -> None:
        """Copy blocks in every layer, in this order: `DecodeStep.block_copies`."""
        pairs = np.frombuffer(bytearray(copies), np.int32).reshape(-1, 2)  # torch wants it writable
        if self._cached.is_cuda:
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.attention.kv_cache import copy_blocks  # noqa: PLC0415

            for launch in _launches(pairs):
                copy_blocks(self._cached, *to_device([launch], self._cached.device))
            return
        for source, target in pairs.tolist():
            self._cached[:, :, target] = self._cached[:, :, source]

    @property
    def nbytes(self) -> int:
        return self._cached.nbytes


def _launches(pairs: IntArray) -> list[IntArray]:
    """`pairs` int32[N, 2] (from, to) together, or one by one if their order matters. A block freed
    and taken again within a step may be copied from and then to."""
    sources, targets = map(set, pairs.T.tolist())
    together = len(targets) == len(pairs) and sources.isdisjoint(targets)
    return [pairs] if together else [*pairs[:, None]]
