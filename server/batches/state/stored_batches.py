"""Stored batches, their status and their progress."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from server.batches.state.database import Change, Database, Page, insertion
from server.batches.state.stored_files import StoredFile

BatchEndpoint = Literal[
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/decisions",
]
"""The endpoints that answer lines."""
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
EXPIRED = "batch_expired"
"""The code of a line's error that was not answered in time."""
_OPEN = f"status NOT IN {OVER}"


class BatchError(msgspec.Struct, frozen=True):
    """The reason why a batch failed, and the `line` of its input if one is at fault."""

    code: str
    """The error's code."""
    message: str
    """The fault, in a sentence."""
    param: str | None = None
    """The field at fault, or null."""
    line: int | None = None
    """The line of the file at fault, from 1, or null."""


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of `owner` (that of an API key). The fields are the columns of its table.

    Times are in seconds since 1970, `NAME_at` that of a status; lines left at `expires_at` are not
    answered. The output is kept for `output_seconds` (None: until deleted). `metadata` and `errors`
    are JSON.
    """

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
    """The batches of the database. Methods block, and raise as `Database`'s do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch: StoredBatch) -> None:
        """Add a new batch, for the batch process to find."""
        self._database.change(insertion("batches", batch))

    def get(self, batch_id: str, owner: str) -> StoredBatch | None:
        """A batch of this owner."""
        return self._found("id = ? AND owner = ?", batch_id, owner)

    def list(self, owner: str, page: Page, endpoint: str | None = None) -> list[StoredBatch]:
        """Find a page of the owner's batches, for one `endpoint` or for all, and one more. Raises
        UnknownItemError."""
        also, values = ("TRUE", []) if endpoint is None else ("endpoint = ?", [endpoint])
        rows = page.rows(self._database, "batches", owner, also, *values)
        return [_batch(row) for row in rows]

    def delete(self, batch_id: str) -> None:
        """Delete a batch that is over. Its files stay."""
        self._database.free(Change("DELETE FROM batches WHERE id = ?", (batch_id,)))

    def next_open(self) -> StoredBatch | None:
        """The oldest batch that is not over."""
        return self._found(f"{_OPEN} ORDER BY created_at, rowid LIMIT 1")

    def status(self, batch_id: str) -> Status | None:
        """The status of a batch of any owner, None if there is no such batch."""
        found = self._database.rows("SELECT status FROM batches WHERE id = ?", batch_id)
        return found[0][0] if found else None

    def cancel(self, batch_id: str, owner: str) -> StoredBatch | None:
        """Have the batch process end this owner's batch, if it is not over. Returns the batch."""
        if self.get(batch_id, owner) is not None:
            before = ("validating", "in_progress")
            self._database.free(_update(batch_id, _entered("cancelling"), before))
        return self.get(batch_id, owner)

    def count(self, batch_id: str, total: int, completed: int, failed: int) -> None:
        """Set the progress, in lines."""
        counts = {"total": total, "completed": completed, "failed": failed}
        self._database.change(_update(batch_id, counts))

    def enter(self, batch_id: str, status: Status, *before: Status, **fields: object) -> bool:
        """Set the status and other fields if the status is one of `before`. Returns if it was."""
        update = _update(batch_id, _entered(status) | fields, before)
        return bool(self._database.change(update))

    def end(
        self, batch_id: str, status: Status, files: Sequence[StoredFile], **fields: object
    ) -> None:
        """End the batch with this status, and give `files` to its owner, in one transaction. Its
        results in `jobs` may be deleted then."""
        end = _update(batch_id, _entered(status) | fields)
        self._database.free(*(insertion("files", file) for file in files), end)

    def _found(self, where: str, *values: object) -> StoredBatch | None:
        rows = self._database.rows(f"SELECT * FROM batches WHERE {where}", *values)  # noqa: S608
        return _batch(rows[0]) if rows else None


def _entered(status: Status) -> dict[str, object]:
    return {"status": status, f"{status}_at": int(time.time())}


def _update(batch_id: str, fields: Mapping[str, object], before: Sequence[Status] = ()) -> Change:
    """The change of `fields`, if the status is one of `before` (empty: whatever it is)."""
    assigned = ", ".join(f"{name} = ?" for name in fields)
    where = f" AND status IN ({', '.join('?' * len(before))})" if before else ""
    update = f"UPDATE batches SET {assigned} WHERE id = ?{where} RETURNING id"  # noqa: S608
    return Change(update, (*fields.values(), batch_id, *before))


def _batch(row: Any) -> StoredBatch:
    return StoredBatch(**dict(zip(_FIELDS, row, strict=True)))
