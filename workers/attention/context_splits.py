"""Many rows that decode, one of them over a context far longer than the others'."""

from workers.step.tensors import IntArray

_FEW_ROWS = 16
"""The contexts of so few are split anyhow, for want of programs."""

_LONG = 4096
"""Tokens that one program a KV head reads while a step's other kernels hardly notice."""

_PART, _MOST_PARTS = 1024, 16


def min_splits(contexts: IntArray) -> int:
    """Into how many parts the contexts int32[R] of rows of one query are to be split at least, lest
    one that is longer than a processor's share of them all hold up the step; 1 where none is."""
    longest = int(contexts.max(initial=0))
    if len(contexts) <= _FEW_ROWS or longest <= max(_LONG, int(contexts.sum()) // 16):
        return 1
    return min(longest // _PART, _MOST_PARTS)
