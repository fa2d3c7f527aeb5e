"""The cache's layout and size, and the order in which its blocks are copied."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workers.checkpoints import save_llama
from workers.attention import kv_cache
from workers.attention.kv_cache import KVCache, kv_block_bytes
from workers.contract.checkpoint.checkpoint_config import read_model_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_takes_the_bytes_that_are_said(tmp_path: Path, dtype: torch.dtype) -> None:
    save_llama(tmp_path, num_key_value_heads=1, head_dim=24)
    config = read_model_config(tmp_path)
    cache = KVCache(config, 3, 5, 16, dtype, torch.device("cpu"))
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert len(tensors) == 6
    for tensor in tensors:
        assert tensor.shape == (5 + 1, 16, 1, 24), "one more for rows that only pad a step"
        assert tensor.dtype == dtype
        assert not tensor.any()
    assert (
        cache.nbytes
        == sum(tensor.nbytes for tensor in tensors)
        == 6 * kv_block_bytes(config, 3, 16, dtype)
    )


@pytest.mark.parametrize(
    ("pairs", "together"),
    [
        ([[5, 1], [5, 2], [7, 3]], True),
        ([[5, 1], [8, 5]], False),
        ([[5, 1], [1, 2]], False),
        ([[5, 1], [6, 1]], False),
    ],
)
def test_copies_run_at_once_unless_their_order_matters(
    pairs: list[list[int]], together: bool
) -> None:
    launches = [launch.tolist() for launch in kv_cache._launches(np.array(pairs, np.int32))]
    assert launches == ([pairs] if together else [[pair] for pair in pairs])
