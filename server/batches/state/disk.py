"""Room on a disk: errors of a full one, a reserve, drafts of files."""

import errno
import os
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write beyond the room of a disk, a quota or the limit on a file's size."""

RESERVE, _BYTES = "reserve", 1 << 20


class Reserve:
    """A file of 1 MiB, released where a full disk keeps something from being freed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def keep(self, beside: int = 0) -> None:
        """Allocate the reserve, if there is room for `beside` more bytes. Raises OSError."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _BYTES + beside)
        finally:
            # A failed allocation leaves some other size.
            os.ftruncate(descriptor, min(os.fstat(descriptor).st_size, _BYTES))
            os.close(descriptor)

    def release(self) -> None:
        """Free the room of the reserve. Raises OSError."""
        if self._file.exists():
            os.truncate(self._file, 0)


DRAFT = ".new"
"""The suffix of a file that is not whole yet."""


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """The path at which a file is written before it gets its name."""
    return path.with_name(path.name + DRAFT)
