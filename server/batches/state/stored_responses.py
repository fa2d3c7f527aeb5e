"""Stored answers of `/v1/responses`, each with its own items and the id of the one before it."""

import time

import msgspec

from server.batches.state.database import Change, Database, Row, insertion

_LIVE = "is_deleted = 0 AND expires_at > ?"
_LINE = f"""
WITH RECURSIVE line AS (
    SELECT *, 0 AS depth, bytes AS total FROM responses WHERE id = ? AND owner = ? AND {_LIVE}
    UNION ALL
    SELECT responses.*, depth + 1, total + responses.bytes
    FROM responses JOIN line ON responses.id = line.parent WHERE total <= ?
)
SELECT * FROM line ORDER BY depth DESC
"""  # noqa: S608 (names of ours)
_PRUNED = f"""
WITH RECURSIVE kept (id, parent) AS (
    SELECT id, parent FROM responses WHERE {_LIVE}
    UNION
    SELECT responses.id, responses.parent FROM responses JOIN kept ON responses.id = kept.parent
)
DELETE FROM responses WHERE id NOT IN (SELECT id FROM kept)
"""  # noqa: S608 (names of ours)


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of `owner`. The fields are the columns of its table.

    `input` and `answer` are JSON. One that is deleted or expired stays while a live one comes
    after it.
    """

    id: str
    owner: str
    parent: str | None
    bytes: int
    created_at: int
    expires_at: int
    is_deleted: int = 0
    input: str
    answer: str


class StoredResponses:
    """The responses of the database. Methods block, and raise as `Database`'s do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, response: StoredResponse) -> None:
        self._database.change(insertion("responses", response))

    def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """A response of this owner that is neither deleted nor expired."""
        found = self._database.rows(
            f"SELECT * FROM responses WHERE id = ? AND owner = ? AND {_LIVE}",  # noqa: S608
            *(response_id, owner, time.time()),
        )
        return _response(found[0]) if found else None

    def line(self, response_id: str, owner: str, most_bytes: int) -> list[StoredResponse]:
        """The response that `get` would find and those before it, the first of all at first. Where
        they have more than `most_bytes`, the first ones are left out."""
        rows = self._database.rows(_LINE, response_id, owner, time.time(), most_bytes)
        return [_response(row[: len(StoredResponse.__struct_fields__)]) for row in rows]

    def delete(self, response_id: str, owner: str) -> bool:
        """Delete a response. Its items stay while a live one comes after it. Returns if it was
        there."""
        gone = Change(
            f"UPDATE responses SET is_deleted = 1 WHERE id = ? AND owner = ? AND {_LIVE} "  # noqa: S608
            "RETURNING id",
            (response_id, owner, time.time()),
        )
        return bool(self._database.free(gone))

    def used_bytes(self, owner: str) -> int:
        """The size of all that is kept of the owner's."""
        ((total,),) = self._database.rows(
            "SELECT COALESCE(SUM(bytes), 0) FROM responses WHERE owner = ?", owner
        )
        return total

    def drop_expired(self) -> None:
        """Drop what is deleted or expired, and not before a live one."""
        now = time.time()
        if self._database.rows(f"SELECT 1 FROM responses WHERE NOT ({_LIVE}) LIMIT 1", now):  # noqa: S608
            self._database.free(Change(_PRUNED, (now,)))


def _response(row: Row) -> StoredResponse:
    return StoredResponse(**dict(zip(StoredResponse.__struct_fields__, row, strict=True)))
