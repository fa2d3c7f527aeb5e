"""Whether the batch process can run: it says so in a file, which any API process reads."""

import os
import struct
from pathlib import Path

from server.metrics.shared_cells import is_alive

_CONTENT = struct.Struct("=q?")
"""The batch process's id, and whether it can run."""


class BatchState:
    """What the batch process says. Its file has its room from the start, whatever disk is full."""

    def __init__(self, file: Path) -> None:
        """It cannot run yet. Raises OSError."""
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._descriptor, 0, _CONTENT.size)
        self.set(runs=False)

    def set(self, *, runs: bool) -> None:
        """From now on. Raises OSError."""
        os.pwrite(self._descriptor, _CONTENT.pack(os.getpid(), runs), 0)


def batches_run(file: Path) -> bool:
    """Whether there is a batch process that says that it can run."""
    content = file.read_bytes() if file.exists() else b""
    if len(content) != _CONTENT.size:
        return False
    pid, runs = _CONTENT.unpack(content)
    return runs and is_alive(pid)
