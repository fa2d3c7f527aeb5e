"""Files that clients upload, and those that batches write for them."""

import os
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.refusal import RefusalError
from server.batches.state.database import Change, Database, Page, insertion
from server.batches.state.disk import DRAFT, draft_of, sync_folder

Purpose = Literal["batch", "batch_output"]
"""The use of a file: requests of a batch, or their results."""

_LIVE = "(expires_at IS NULL OR expires_at > ?)"
_ID_BYTES = 12


class StoredFile(msgspec.Struct, frozen=True):
    """A file of `owner` (that of an API key). The fields are the columns of its table.

    Times are in seconds since 1970. Without `expires_at` it stays until it is deleted.
    """

    id: str
    owner: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int | None = None


def new_id(kind: str) -> str:
    """An id that nobody can guess."""
    return f"{kind}-{secrets.token_hex(_ID_BYTES)}"


class StoredFiles:
    """Files with their contents in a folder and all else in the database. A file exists once it
    has its row. Methods block, and raise OSError or as `Database`'s do."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self.folder = folder

    def path(self, file_id: str) -> Path:
        """The path of a file's contents."""
        return self.folder / file_id

    def add(self, file: StoredFile) -> None:
        """Add a file whose contents are on the disk, at its path."""
        sync_folder(self.folder)
        self._database.change(insertion("files", file))

    def get(self, file_id: str, owner: str) -> StoredFile | None:
        """A file of this owner that has not expired."""
        found = self._database.rows(
            f"SELECT * FROM files WHERE id = ? AND owner = ? AND {_LIVE}",  # noqa: S608
            *(file_id, owner, time.time()),
        )
        return StoredFile(*found[0]) if found else None

    def list(self, owner: str, page: Page, purpose: str | None = None) -> list[StoredFile]:
        """Find a page of the owner's files, and one more. Raises UnknownItemError."""
        also, values = _LIVE, [time.time()]
        if purpose is not None:
            also, values = f"{also} AND purpose = ?", [*values, purpose]
        rows = page.rows(self._database, "files", owner, also, *values)
        return [StoredFile(*row) for row in rows]

    def delete(self, file_id: str, owner: str) -> bool:
        """Delete a file, the contents first: that makes room on a full disk. Returns if it was
        there."""
        if not self._database.rows(
            "SELECT id FROM files WHERE id = ? AND owner = ?", file_id, owner
        ):
            return False
        self.path(file_id).unlink(missing_ok=True)
        gone = Change("DELETE FROM files WHERE id = ? RETURNING id", (file_id,))
        return bool(self._database.free(gone))

    def used_bytes(self, owner: str) -> int:
        """The size of all files of the owner."""
        ((total,),) = self._database.rows(
            f"SELECT COALESCE(SUM(bytes), 0) FROM files WHERE owner = ? AND {_LIVE}",  # noqa: S608
            *(owner, time.time()),
        )
        return total

    def drop_expired(self) -> None:
        """Delete expired files."""
        now = time.time()
        gone = self._database.rows("SELECT id FROM files WHERE expires_at <= ?", now)
        for (file_id,) in gone:
            self.path(file_id).unlink(missing_ok=True)
        if gone:
            self._database.free(Change("DELETE FROM files WHERE expires_at <= ?", (now,)))

    def drop_drafts(self) -> None:
        """Delete the drafts of uploads that a killed daemon did not finish. Nobody else may use the
        folder."""
        for draft in self.folder.glob(f"*{DRAFT}"):
            draft.unlink()

    def unknown(self) -> set[Path]:
        """Contents without a row, which nobody can fetch, and only a person may delete."""
        known = {file_id for (file_id,) in self._database.rows("SELECT id FROM files")}
        return {path for path in self.folder.iterdir() if path.name not in known}


_CHUNK = 1 << 20


class Upload:
    """Writes a file as its contents come, until `commit` or `discard`. Methods block, and raise
    OSError."""

    def __init__(self, path: Path, *, max_bytes: int, max_lines: int, left_bytes: int) -> None:
        """`left_bytes` is the rest of the owner's quota."""
        self._path, self._draft = path, draft_of(path)
        self._max_bytes, self._max_lines, self._left_bytes = max_bytes, max_lines, left_bytes
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", _CHUNK)
        self.num_bytes = self._num_lines = 0

    def write(self, data: bytes) -> None:
        """Raises RefusalError beyond a limit."""
        self.num_bytes += len(data)
        self._num_lines += data.count(b"\n")
        self.check(self.num_bytes)
        if self._num_lines > self._max_lines:
            message = f"file: a file has at most {self._max_lines:,} lines"
            raise RefusalError("too_large", message, "file")
        self._file.write(data)

    def check(self, num_bytes: int) -> None:
        """Raises RefusalError if a file of `num_bytes` is too large."""
        if num_bytes > self._max_bytes:
            message = f"file: a file has at most {self._max_bytes:,} bytes"
            raise RefusalError("body_too_large", message, "file")
        if num_bytes > self._left_bytes:
            left = f"{self._left_bytes:,} bytes are left of what you may store"
            raise RefusalError("quota_exceeded", f"file: {left}; delete files", "file")

    def commit(self) -> None:
        """Have the contents on the disk, under their name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)

    def discard(self) -> None:
        """Delete the file, written or not."""
        for path in (self._draft, self._path):
            path.unlink(missing_ok=True)
        self._file.close()
