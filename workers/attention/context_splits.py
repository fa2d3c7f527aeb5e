"""Skewed decode steps: many rows, one of which has a far longer context than the others."""

from workers.device.tuning import (
    SKEWED_MAX_SPLITS,
    SKEWED_MIN_CONTEXT,
    SKEWED_MIN_ROWS,
    SKEWED_SHARE,
    SKEWED_SPLIT_TOKENS,
)
from workers.step.rows import IntArray


def min_splits(contexts: IntArray) -> int:
    """Into how many splits a decode kernel must divide the contexts int32[R] at least.

    A context that is much longer than the others would delay the whole step; 1 if there is none.
    """
    longest = int(contexts.max(initial=0))
    fair_share = int(contexts.sum()) // SKEWED_SHARE
    if len(contexts) <= SKEWED_MIN_ROWS or longest <= max(SKEWED_MIN_CONTEXT, fair_share):
        return 1
    return min(longest // SKEWED_SPLIT_TOKENS, SKEWED_MAX_SPLITS)
