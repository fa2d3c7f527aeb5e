"""The C library's heap on a CPU, which keeps what steps have freed."""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

_SECONDS_BETWEEN = 10.0
"""CPU time of the thread, so that a busy machine does not make it dearer."""

_FREED_BYTES = 64 << 20
"""Bytes that a worker may have in memory beyond what it had after the last time."""


class HeapTrimmer:
    """Gives freed memory back to the kernel, at most once in ten seconds of work.

    Steps have temporaries of many sizes, and what oneDNN keeps lies between them: the heap grows
    with the variety of steps. To give back and fault in again takes up to 0.1 s.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        # Only glibc has it, and only glibc needs it.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._kept, self._next = resident_bytes(), clock()

    def after_step(self) -> None:
        """Give back what is free if the worker has grown by much, and not a moment ago."""
        now = self._clock()
        if self._trim is None or now < self._next:
            return
        self._next = now + _SECONDS_BETWEEN
        if resident_bytes() > self._kept + _FREED_BYTES:
            self._trim(ctypes.c_size_t(0))
            self._kept = resident_bytes()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
