"""An upload on its way to the disk, within its bounds."""

import os
from pathlib import Path

import msgspec

from engine_core.refusal import RefusalError
from server.sync_folder import draft_of

_CHUNK = 1 << 20


class UploadBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one file may have, and what is left of what its owner may store, in bytes."""

    max_bytes: int
    max_lines: int
    left_bytes: int


class Upload:
    """Takes the contents of a file as they come. `commit` or `discard` it. Its methods block, and
    raise OSError where the disk fails."""

    def __init__(self, path: Path, bounds: UploadBounds) -> None:
        self._path, self._draft = path, draft_of(path)
        self._bounds = bounds
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", _CHUNK)
        self.num_bytes = self._num_lines = 0

    def write(self, data: bytes) -> None:
        """Raises RefusalError where there is too much."""
        self.num_bytes += len(data)
        self._num_lines += data.count(b"\n")
        self.check(self.num_bytes)
        most = self._bounds.max_lines
        if self._num_lines > most:
            raise RefusalError("too_large", f"file: a file has at most {most:,} lines", "file")
        self._file.write(data)

    def check(self, num_bytes: int) -> None:
        """Raises RefusalError if so many are too many."""
        bounds = self._bounds
        if num_bytes > bounds.max_bytes:
            message = f"file: a file has at most {bounds.max_bytes:,} bytes"
            raise RefusalError("body_too_large", message, "file")
        if num_bytes > bounds.left_bytes:
            left = f"{bounds.left_bytes:,} bytes are left of what you may store"
            raise RefusalError("quota_exceeded", f"file: {left}; delete files", "file")

    def commit(self) -> None:
        """The contents are on the disk, under their name, when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)

    def discard(self) -> None:
        """Nothing is left of it."""
        for path in (self._draft, self._path):
            path.unlink(missing_ok=True)
        self._file.close()
