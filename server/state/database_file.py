"""The file of the state folder's database, watched for being the one that the daemon began with."""

import os
from pathlib import Path

_TOKEN = slice(68, 72)
"""Where SQLite keeps the `application_id`, in the first page."""


class StateFolderError(Exception):
    """The state folder cannot be used; one line says why."""


class DatabaseFile:
    """An open database file, which its daemon has marked with `token`: a backup has another mark.

    A process has one of a file at most: to close a descriptor takes away SQLite's locks on the
    same file.
    """

    def __init__(self, path: Path, token: int) -> None:
        """Open it. Raises StateFolderError."""
        self._path, self._token = path, token
        self._size = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StateFolderError(f"{path} cannot be read: {error.strerror}") from None

    def check(self) -> None:
        """Look whether the file is still there, the same and whole. Raises StateFolderError."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StateFolderError(f"{self._path} cannot be found: {error.strerror}") from None
        same = os.path.samestat(os.fstat(self._descriptor), found)
        # Nothing that the daemon does makes it smaller.
        if not same or found.st_size < self._size or self._mark() != self._token:
            raise StateFolderError(f"{self._path} has been replaced or cut while the daemon runs")
        self._size = found.st_size

    def close(self) -> None:
        """Only after SQLite has closed it."""
        os.close(self._descriptor)

    def _mark(self) -> int:
        return int.from_bytes(os.pread(self._descriptor, _TOKEN.stop, 0)[_TOKEN])
