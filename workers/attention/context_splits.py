"""Skewed decode steps: many rows, one of which has a far longer context than the others."""

import numpy as np

from workers.device.tuning import (
    SKEWED_MAX_SPLITS,
    SKEWED_MIN_CONTEXT,
    SKEWED_MIN_ROWS,
    SKEWED_SHARE,
    SKEWED_SPLIT_TOKENS,
)
from workers.step.rows import IntArray


def min_splits(contexts: IntArray, window: int | None = None) -> int:
    """The fewest splits into which a decode kernel divides each context of int32[R] tokens, or the
    part of it within a window.

    1 unless one context is much longer than the others: read by one program, it would delay the
    whole step.
    """
    if window is not None:
        contexts = np.minimum(contexts, np.int32(window))
    longest = int(contexts.max(initial=0))
    fair_share = int(contexts.sum()) // SKEWED_SHARE
    if len(contexts) <= SKEWED_MIN_ROWS or longest <= max(SKEWED_MIN_CONTEXT, fair_share):
        return 1
    return min(longest // SKEWED_SPLIT_TOKENS, SKEWED_MAX_SPLITS)


def has_skewed_context(contexts: IntArray) -> bool:
    """Whether one of the contexts int32[R] is so long that it must be split."""
    return min_splits(contexts) > 1
