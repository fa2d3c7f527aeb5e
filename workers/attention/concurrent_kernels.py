"""Kernels that do not need one another's results, side by side on the GPU."""

from collections.abc import Callable, Sequence

import torch


def concurrently(works: Sequence[Callable[[], object]]) -> None:
    """Queue what each of `works` launches, in their order; where a CUDA graph is being captured, as
    branches of it. None may read or overwrite what another writes.

    Outside a graph streams would gain little: a launch takes as long as such a kernel.
    """
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if len(works) < 2 or not capturing:
        for work in works:
            work()
        return
    here = torch.cuda.current_stream()
    beside = [torch.cuda.Stream() for _ in works[1:]]
    for stream in beside:
        stream.wait_stream(here)
    works[0]()
    for stream, work in zip(beside, works[1:], strict=True):
        with torch.cuda.stream(stream):
            work()
        here.wait_stream(stream)
