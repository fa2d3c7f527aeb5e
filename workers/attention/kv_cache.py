"""The paged key-value cache of one stage."""

import torch

from workers.attention.base import LayerCache
from workers.contract.model_config import ModelConfig


def kv_block_bytes(config: ModelConfig, layers: int, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of `block_size` tokens in all `layers` layers, keys and values."""
    return 2 * layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of a stage's layers, each [num_blocks + 1, block_size, kv_heads, head_dim].

    A block id addresses the same block in every layer. Block `num_blocks` is never allocated to a
    request: padding rows write there. Zero-filled, so that memory that is read before it is written
    holds no NaN.
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
        shape = (num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        self.layers = [
            LayerCache(
                keys=torch.zeros(shape, dtype=dtype, device=device),
                values=torch.zeros(shape, dtype=dtype, device=device),
            )
            for _ in range(num_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers, including the block for padding."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
