"""Times work on a CUDA device."""

from collections.abc import Callable
from itertools import pairwise

import torch

_RUNS = 3


def least_milliseconds(run: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few consecutive runs, on the device's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_RUNS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    marks[-1].synchronize()
    return min(start.elapsed_time(end) for start, end in pairwise(marks))
