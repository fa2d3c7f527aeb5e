"""Freed memory goes back to the kernel. The heap is this process's own."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workers.device.heap import HeapTrimmer, resident_bytes

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]
BLOCK, BLOCKS = 64 << 10, 2048
FREED = BLOCK * BLOCKS
"""Bytes: 128 MiB."""


@pytest.fixture(autouse=True)
def _no_gaps() -> None:
    """Give back what earlier tests freed: blocks in such gaps do not make the process grow."""
    LIBC.malloc_trim(0)


@contextmanager
def freed_blocks(count: int = BLOCKS) -> Iterator[None]:
    """Free memory of the heap; a block behind it keeps the C library from giving it back."""
    *blocks, last = [LIBC.malloc(BLOCK) for _ in range(count + 1)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
        LIBC.free(block)
    yield
    LIBC.free(last)


def test_freed_memory_goes_back_once_ten_seconds_have_passed() -> None:
    now = [0.0]
    trimmer = HeapTrimmer(lambda: now[0])
    with freed_blocks():
        grown = resident_bytes()
        trimmer.after_step()
        assert resident_bytes() < grown - FREED // 2
    with freed_blocks():
        grown = resident_bytes()
        now[0] = 9.9
        trimmer.after_step()
        assert resident_bytes() > grown - FREED // 2
        now[0] = 10.0
        trimmer.after_step()
        assert resident_bytes() < grown - FREED // 2


def test_little_freed_memory_stays() -> None:
    trimmer = HeapTrimmer(lambda: 0.0)
    with freed_blocks(256):
        grown = resident_bytes()
        trimmer.after_step()
        assert resident_bytes() > grown - BLOCK * 128
