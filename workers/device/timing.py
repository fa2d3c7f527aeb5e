"""Times work on a device."""

import time
from collections.abc import Callable
from itertools import pairwise

import torch

_RUNS = 3

_QUEUED_RUNS = 5
_HEAD_START = 64
"""Matrix products of 0.14 TFLOP that keep the GPU busy while runs are launched, of a dozen kernels:
ten milliseconds and more."""

_CPU_RUNS, _CPU_SECONDS, _SLOW_SECONDS = 8, 0.15, 0.5
"""The most runs on a CPU. None begins after so many seconds, nor a second one if the first was
slow."""


def least_milliseconds(run: Callable[[], object]) -> float:
    """Milliseconds of the fastest of a few consecutive runs, on the CUDA device's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_RUNS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    marks[-1].synchronize()
    return min(start.elapsed_time(end) for start, end in pairwise(marks))


def queued_milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """The CUDA device's time for one run, the mean of several consecutive runs.

    They are queued while the device is busy: the time to launch them, which differs by library and
    is hidden on a server, is not measured.
    """
    square = torch.ones((4096, 4096), dtype=torch.float16, device=device)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_HEAD_START):
        torch.mm(square, square)
    start.record()
    for _ in range(_QUEUED_RUNS):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / _QUEUED_RUNS


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a run takes at least, on any device. The first of several pays for what is
    compiled or allocated then."""
    if device.type == "cuda":
        run()
        return min(queued_milliseconds(run, device) for _ in range(_RUNS)) / 1e3
    times: list[float] = []
    while len(times) < _CPU_RUNS and sum(times) < (_CPU_SECONDS if times[1:] else _SLOW_SECONDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)
