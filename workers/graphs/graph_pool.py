"""The memory and the stream that all CUDA graphs of a stage share."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

import torch


class GraphPool:
    """One memory pool for all graphs of a stage, only one of which runs at a time, and the stream
    on which they are captured. The largest is captured first: the others fit into its memory."""

    def __init__(self) -> None:
        # Frees the graphs of an earlier runner: freeing them during a capture would invalidate it.
        gc.collect()
        self._handle = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Surrounds every `begin`: nothing else runs on the device meanwhile."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def begin(self) -> torch.cuda.CUDAGraph:
        """A graph that captures all kernels launched until its `capture_end`."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._handle)
        return graph
