"""Blocks copied in all layers at once."""

import pytest
import torch

from tests.workers.kernels.drawn import drawn
from workers.kernels.attention.kv_cache import copy_blocks


@pytest.mark.parametrize("block", [(16, 2, 24), (128, 8, 128)], ids=str)
def test_blocks(block: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    cache = drawn(3, 2, 6, *block, dtype=dtype, device=device)
    want = cache.clone()
    want[:, :, [0, 4]] = cache[:, :, [5, 2]]
    copy_blocks(cache, torch.tensor([[5, 0], [2, 4]], dtype=torch.int32, device=device))
    assert torch.equal(cache, want)
