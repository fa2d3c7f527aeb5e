"""Room on a disk: which errors say that there is none, and a reserve of it."""

import errno
import os
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write fails with where a disk, a quota or the size of a file has come to its end."""

_BYTES = 1 << 20


class Reserve:
    """A file of 1 MiB that is given up where a full disk keeps something from being freed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def keep(self, beside: int = 0) -> None:
        """Have the reserve, if there is room for `beside` more bytes. Raises OSError."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _BYTES + beside)
        finally:
            # What a failed allocation leaves would be more or less than the reserve.
            os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, _BYTES))
            os.close(descriptor)

    def release(self) -> None:
        """Give it up. Raises OSError."""
        if self._file.exists():
            os.truncate(self._file, 0)


DRAFT = ".new"
"""The end of the name of a file that is not whole yet."""


def sync_folder(folder: Path) -> None:
    """Names in it are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(path.name + DRAFT)
