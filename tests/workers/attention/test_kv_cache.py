"""The cache's layout and size, and the order in which its blocks are copied."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.workers.checkpoints import save_llama, with_execution, worker_config
from workers.attention import kv_cache
from workers.attention.kv_cache import KVCache
from workers.contract.config import Dtype
from workers.layers.layer import TORCH_DTYPES


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_block_takes_the_bytes_that_are_said(tmp_path: Path, name: Dtype) -> None:
    save_llama(tmp_path, num_key_value_heads=1, head_dim=24)
    execution, dtype = worker_config(tmp_path, dtype=name).execution, TORCH_DTYPES[name]
    cache = KVCache(execution.cache_layout, range(3), 5, dtype, torch.device("cpu"))
    tensors = [tensor for layer in cache.layers.values() for tensor in layer[:2]]
    assert len(tensors) == 6
    for tensor in tensors:
        assert tensor.shape == (5 + 1, 4, 1, 24), "one more for rows that only pad a step"
        assert tensor.dtype == dtype
        assert not tensor.any()
    size = sum(tensor.nbytes for tensor in tensors)
    assert cache.nbytes == size == 6 * 4 * execution.kv_token_bytes(range(3))


def test_a_block_in_fp8(tmp_path: Path) -> None:
    """Numbers of a byte and a scale for each head; zeros until they are written; copied whole."""
    save_llama(tmp_path, num_key_value_heads=2, head_dim=24)
    worker = with_execution(worker_config(tmp_path), kv_cache_dtype="fp8_e4m3")
    execution = worker.execution
    assert execution.kv_token_bytes(range(1)) == 2 * (2 * 24 + 4)
    cache = KVCache(execution.cache_layout, range(3), 5, torch.float8_e4m3fn, torch.device("cpu"))
    assert cache.nbytes == 6 * execution.kv_block_bytes(range(3))
    kv_indices, (keys, values) = torch.tensor([9, 11]), torch.randn(2, 2, 2, 24)
    for layer in cache.layers.values():
        assert not torch.stack(layer.read(kv_indices, torch.float32)).any()
        layer.write(kv_indices, keys, values)
    cache.copy_blocks(np.array([[2, 4]], np.int32).tobytes())
    cache.clear(3)
    for layer in cache.layers.values():
        found = layer.read(torch.tensor([17, 19]), torch.float32)
        torch.testing.assert_close(found, (keys, values), rtol=1 / 16, atol=1e-3)
        assert not torch.stack(layer.read(torch.arange(17), torch.float32)).any()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
def test_layers_of_unequal_heads_share_blocks(tmp_path: Path, kv_cache_dtype: str) -> None:
    """A block is of one table, whose layers have all of its memory between them, or less."""
    save_llama(tmp_path, num_key_value_heads=2, head_dim=24)
    worker = with_execution(worker_config(tmp_path), kv_cache_dtype=kv_cache_dtype)
    (kind,) = worker.execution.model.attention
    within = msgspec.structs.replace(kind, window=8, num_kv_heads=4, head_dim=36)
    model = msgspec.structs.replace(
        worker.execution.model,
        num_layers=8,
        attention=(kind, within),
        layer_kinds=(1, 0, 1, 1, 0, 1, 0, 0),
        kv_layers=(0, 1, 2, 3, 4, 5, 4, 1),
    )
    execution = msgspec.structs.replace(worker.execution, model=model)
    layout, size = execution.cache_layout, execution.block_size
    assert layout.plane_numbers == 144
    assert [group.a_plane for group in layout.groups] == [3, 1]
    dtype = TORCH_DTYPES[execution.cache_dtype]
    cache = KVCache(layout, range(8), 5, dtype, torch.device("cpu"))
    assert cache.nbytes == 6 * execution.kv_block_bytes(range(8))
    assert sorted(cache.layers) == [0, 1, 2, 3, 4, 5], "the others have these layers' memory"
    places, written = layout.places(range(8)), {}
    for layer, place in places.items():
        # Each table has other blocks, as if there were no more tables than blocks.
        block, heads = place.table, model.heads_of(layer)
        indices = block * layout.table_parts[place.table] * size + torch.arange(size)
        keys, values = torch.randn(2, size, heads.num_kv_heads, heads.head_dim)
        cache.layers[layer].write(indices, keys, values)
        written[layer] = indices, (keys, values)
    cache.copy_blocks(np.array([[0, 5]], np.int32).tobytes())
    for layer, (indices, both) in written.items():
        parts = layout.table_parts[places[layer].table]
        copied = [indices + 5 * parts * size] if places[layer].table == 0 else []
        for found in (indices, *copied):
            read = cache.layers[layer].read(found, torch.float32)
            torch.testing.assert_close(read, both, rtol=1 / 16, atol=1e-2)


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
