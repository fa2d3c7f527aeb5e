"""Batches: what a client has asked for, and how far the batch process is."""

import time
from typing import Any, Literal

import msgspec

from server.batches.state.database import Change, Database, Page
from server.batches.state.stored_files import StoredFile, insertion

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
OVER = ("failed", "completed", "expired", "cancelled")
_OPEN = f"status NOT IN {OVER}"


class BatchError(msgspec.Struct, frozen=True):
    """Why a batch failed; `line` of its input, if one is to blame."""

    code: str
    """The error's code."""
    message: str
    """The fault, in a sentence."""
    param: str | None = None
    """The field at fault, or null."""
    line: int | None = None
    """The line of the file at fault, from 1, or null."""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of `owner` (that of an API key). Times are in seconds since 1970, `NAME_at` when
    it took that status; `expires_at` is when what is not done will not be. `output_seconds` is how
    long its output is kept (None: until deleted). `metadata` and `errors` are JSON. The fields are
    the columns of its table."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str
    output_seconds: int | None = None
    status: Status = "validating"
    model: str | None = None
    errors: str = "[]"
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


_FIELDS = StoredBatch.__struct_fields__


class StoredBatches:
    """The batches of the database. Methods block, and raise what `Database` says."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch: StoredBatch) -> None:
        """A new one, for the batch process to find."""
        columns, marks = ", ".join(_FIELDS), ", ".join("?" * len(_FIELDS))
        statement = f"INSERT INTO batches ({columns}) VALUES ({marks})"  # noqa: S608 (names of ours)
        self._database.change(Change(statement, msgspec.structs.astuple(batch)))

    def get(self, batch_id: str, owner: str) -> StoredBatch | None:
        """A batch of this owner."""
        return self._found("id = ? AND owner = ?", batch_id, owner)

    def list(self, owner: str, page: Page) -> list[StoredBatch]:
        """A page of the owner's batches, and the one behind it, if there is one. Raises
        UnknownItemError."""
        return [_batch(row) for row in page.rows(self._database, "batches", owner)]

    def next_open(self) -> StoredBatch | None:
        """The oldest that is not over."""
        return self._found(f"{_OPEN} ORDER BY created_at, rowid LIMIT 1")

    def status(self, batch_id: str) -> Status | None:
        """The status of any owner's batch; None if there is no such batch."""
        found = self._database.rows("SELECT status FROM batches WHERE id = ?", batch_id)
        return found[0][0] if found else None

    def cancel(self, batch_id: str, owner: str) -> StoredBatch | None:
        """A batch of this owner, which the batch process ends soon if it was not over."""
        statement = (
            "UPDATE batches SET status = 'cancelling', cancelling_at = ? WHERE id = ? "
            "AND owner = ? AND status IN ('validating', 'in_progress')"
        )
        self._database.free(Change(statement, (int(time.time()), batch_id, owner)))
        return self.get(batch_id, owner)

    def count(self, batch_id: str, *, total: int, completed: int, failed: int) -> None:
        """How far it is, in lines."""
        self._set(batch_id, total=total, completed=completed, failed=failed)

    def enter(self, batch_id: str, status: Status, *before: Status, **fields: object) -> bool:
        """Give it a status and other fields, if it has a status of `before`. Whether it had."""
        fields = {"status": status, f"{status}_at": int(time.time()), **fields}
        return self._set(batch_id, *before, **fields)

    def end(
        self, batch_id: str, status: Status, files: tuple[StoredFile, ...], **fields: object
    ) -> None:
        """It is over: at once with this status, and with `files` for its owner. What it has in
        `jobs` may be deleted then."""
        fields = {"status": status, f"{status}_at": int(time.time()), **fields}
        update = f"UPDATE batches SET {_assigned(fields)} WHERE id = ?"  # noqa: S608
        changes = *map(insertion, files), Change(update, (*fields.values(), batch_id))
        self._database.free(*changes)

    def _set(self, batch_id: str, *before: Status, **fields: object) -> bool:
        where = f" AND status IN ({', '.join('?' * len(before))})" if before else ""
        update = f"UPDATE batches SET {_assigned(fields)} WHERE id = ?{where} RETURNING id"  # noqa: S608
        return bool(self._database.change(Change(update, (*fields.values(), batch_id, *before))))

    def _found(self, where: str, *values: object) -> StoredBatch | None:
        rows = self._database.rows(f"SELECT * FROM batches WHERE {where}", *values)  # noqa: S608
        return _batch(rows[0]) if rows else None


def _assigned(fields: dict[str, object]) -> str:
    return ", ".join(f"{name} = ?" for name in fields)


def _batch(row: Any) -> StoredBatch:
    return StoredBatch(**dict(zip(_FIELDS, row, strict=True)))
