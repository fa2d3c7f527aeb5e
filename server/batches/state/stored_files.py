"""Files that clients have uploaded, and those that batches have written for them."""

import os
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.refusal import RefusalError
from server.batches.state.database import Change, Database, Page
from server.batches.state.disk import DRAFT, draft_of, sync_folder

Purpose = Literal["batch", "batch_output"]
"""What a file is for: the requests of a batch, or what came of them."""

_LIVE = "(expires_at IS NULL OR expires_at > ?)"
_ID_BYTES = 12


class StoredFile(msgspec.Struct, frozen=True):
    """A file of `owner` (that of an API key). Times are in seconds since 1970; without
    `expires_at` it stays until it is deleted. The fields are the columns of its table."""

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
    """Their contents are in a folder, all else in the database. A file is there once it has its
    row. Methods block; they raise OSError, or what `Database` says, where the disk fails."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self.folder = folder

    def path(self, file_id: str) -> Path:
        """Where its contents are."""
        return self.folder / file_id

    def add(self, *files: StoredFile) -> None:
        """Files whose contents are at their paths, and on the disk."""
        sync_folder(self.folder)
        self._database.change(*map(insertion, files))

    def get(self, file_id: str, owner: str) -> StoredFile | None:
        """A file of this owner that has not expired."""
        found = self._database.rows(
            f"SELECT * FROM files WHERE id = ? AND owner = ? AND {_LIVE}",  # noqa: S608
            *(file_id, owner, time.time()),
        )
        return StoredFile(*found[0]) if found else None

    def list(self, owner: str, page: Page, purpose: str | None = None) -> list[StoredFile]:
        """A page of the owner's files, and the one behind it, if there is one. Raises
        UnknownItemError."""
        also, values = _LIVE, [time.time()]
        if purpose is not None:
            also, values = f"{also} AND purpose = ?", [*values, purpose]
        rows = page.rows(self._database, "files", owner, also, *values)
        return [StoredFile(*row) for row in rows]

    def delete(self, file_id: str, owner: str) -> bool:
        """Whether there was such a file. Its contents go first: a full disk has room then."""
        if not self._database.rows(
            "SELECT id FROM files WHERE id = ? AND owner = ?", file_id, owner
        ):
            return False
        self.path(file_id).unlink(missing_ok=True)
        gone = Change("DELETE FROM files WHERE id = ? RETURNING id", (file_id,))
        return bool(self._database.free(gone))

    def used_bytes(self, owner: str) -> int:
        """What the owner's files take."""
        ((total,),) = self._database.rows(
            f"SELECT COALESCE(SUM(bytes), 0) FROM files WHERE owner = ? AND {_LIVE}",  # noqa: S608
            *(owner, time.time()),
        )
        return total

    def drop_expired(self) -> None:
        """Delete what has expired."""
        now = time.time()
        gone = self._database.rows("SELECT id FROM files WHERE expires_at <= ?", now)
        for (file_id,) in gone:
            self.path(file_id).unlink(missing_ok=True)
        if gone:
            self._database.free(Change("DELETE FROM files WHERE expires_at <= ?", (now,)))

    def drop_drafts(self) -> None:
        """Delete what is not whole, of uploads that a killed daemon did not finish. Only while
        nobody else uses the folder."""
        for draft in self.folder.glob(f"*{DRAFT}"):
            draft.unlink()

    def unknown(self) -> set[Path]:
        """Contents without a row: nobody can fetch them, and only a person may delete them."""
        known = {file_id for (file_id,) in self._database.rows("SELECT id FROM files")}
        return {path for path in self.folder.iterdir() if path.name not in known}


def insertion(file: StoredFile) -> Change:
    """The change that adds a file."""
    return Change("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(file))


_CHUNK = 1 << 20


class Upload:
    """Takes the contents of a file as they come. `commit` or `discard` it. Its methods block, and
    raise OSError where the disk fails."""

    def __init__(self, path: Path, *, max_bytes: int, max_lines: int, left_bytes: int) -> None:
        """`left_bytes` are left of what its owner may store."""
        self._path, self._draft = path, draft_of(path)
        self._max_bytes, self._max_lines, self._left_bytes = max_bytes, max_lines, left_bytes
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", _CHUNK)
        self.num_bytes = self._num_lines = 0

    def write(self, data: bytes) -> None:
        """Raises RefusalError where there is too much."""
        self.num_bytes += len(data)
        self._num_lines += data.count(b"\n")
        self.check(self.num_bytes)
        if self._num_lines > self._max_lines:
            message = f"file: a file has at most {self._max_lines:,} lines"
            raise RefusalError("too_large", message, "file")
        self._file.write(data)

    def check(self, num_bytes: int) -> None:
        """Raises RefusalError if so many are too many."""
        if num_bytes > self._max_bytes:
            message = f"file: a file has at most {self._max_bytes:,} bytes"
            raise RefusalError("body_too_large", message, "file")
        if num_bytes > self._left_bytes:
            left = f"{self._left_bytes:,} bytes are left of what you may store"
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
