"""When a decode step with skewed contexts is split."""

import numpy as np
import pytest

from workers.attention.backends.triton import min_splits


@pytest.mark.parametrize(
    ("contexts", "splits"),
    [
        ([], 1),
        ([32000], 1),
        ([32000] + [600] * 15, 1),
        ([32000] + [600] * 16, 16),
        ([32000] * 64, 1),
        ([4096] + [10] * 63, 1),
        ([5000] + [10] * 63, 4),
        ([5000] + [2000] * 63, 1),
    ],
)
def test_min_splits(contexts: list[int], splits: int) -> None:
    assert min_splits(np.array(contexts, np.int32)) == splits
