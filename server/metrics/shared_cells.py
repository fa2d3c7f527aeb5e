"""Numbers that every API process counts for itself, and any of them can sum up.

Each process writes a file of its own, mapped into memory: to count is to store one number, and no
process ever waits for another. The file of a process that has died stays: what it had counted
still counts, but nothing is in flight there any more.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

_ITEM = 8
_PID = 0  # the cell that holds the process that writes


class SharedCells:
    """float64 cells: this process's `own`, and the sums over all processes."""

    def __init__(self, size: int, files: Sequence[Path], index: int) -> None:
        """`files` are those of all API processes, of which this is number `index`; none if there is
        but one process. `size` cells are for its caller. Raises OSError."""
        self._bytes = (size + 1) * _ITEM
        self._files = list(files)
        self._maps: dict[Path, npt.NDArray[np.float64]] = {}
        memory = bytearray(self._bytes) if not files else self._mapped(files[index], create=True)
        cells = memoryview(memory).cast("B").cast("d")
        cells[_PID] = os.getpid()
        self.own = cells[1:]
        self._own = np.frombuffer(memory, np.float64)

    def sums(self) -> list[float]:
        """Of every cell, over all processes."""
        return self._summed(lambda _: True)

    def sums_alive(self) -> list[float]:
        """Of every cell, over the processes that run."""
        return self._summed(is_alive)

    def _summed(self, counts: Callable[[int], bool]) -> list[float]:
        found = [cells for cells in self._all() if counts(int(cells[_PID]))]
        return np.sum(found, axis=0)[1:].tolist()

    def _all(self) -> list[npt.NDArray[np.float64]]:
        """The cells of every process that has begun, which are its own with one process."""
        for file in self._files:
            if file not in self._maps and file.exists() and file.stat().st_size == self._bytes:
                self._maps[file] = np.frombuffer(self._mapped(file), np.float64)
        return list(self._maps.values()) or [self._own]

    def _mapped(self, file: Path, *, create: bool = False) -> mmap.mmap:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        descriptor = os.open(file, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, self._bytes)
            access = mmap.ACCESS_WRITE if create else mmap.ACCESS_READ
            return mmap.mmap(descriptor, self._bytes, access=access)
        finally:
            os.close(descriptor)


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
