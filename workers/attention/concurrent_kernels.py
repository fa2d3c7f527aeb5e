"""Runs independent kernels at the same time within a CUDA graph."""

from collections.abc import Callable, Sequence

import torch


def concurrently(launches: Sequence[Callable[[], object]]) -> None:
    """Call each of `launches` in order. In a CUDA graph that is being captured they become parallel
    branches; none may read or overwrite another's results.

    Outside a graph, parallel streams would gain little: launching takes as long as the kernels.
    """
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if len(launches) < 2 or not capturing:
        for launch in launches:
            launch()
        return
    main = torch.cuda.current_stream()
    others = [torch.cuda.Stream() for _ in launches[1:]]
    for stream in others:
        stream.wait_stream(main)
    launches[0]()
    for stream, launch in zip(others, launches[1:], strict=True):
        with torch.cuda.stream(stream):
            launch()
        main.wait_stream(stream)
