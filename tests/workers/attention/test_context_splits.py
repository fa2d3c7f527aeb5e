"""When contexts of rows that decode are split for one of them."""

import numpy as np
import pytest

from workers.attention.context_splits import min_splits


@pytest.mark.parametrize(
    ("contexts", "parts"),
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
def test_least_parts(contexts: list[int], parts: int) -> None:
    assert min_splits(np.array(contexts, np.int32)) == parts
