"""The database of the state folder: SQLite, used by all processes of one daemon."""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BUSY_SECONDS = 30.0
_VERSION = 1
_SCHEMA = """
CREATE TABLE files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER
) STRICT;
CREATE INDEX files_of_owner ON files (owner, created_at, id);
CREATE TABLE batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, metadata TEXT NOT NULL,
    output_seconds INTEGER, status TEXT NOT NULL, model TEXT, errors TEXT NOT NULL,
    total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL,
    output_file_id TEXT, error_file_id TEXT,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, in_progress_at INTEGER,
    finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER, expired_at INTEGER,
    cancelling_at INTEGER, cancelled_at INTEGER
) STRICT;
CREATE INDEX batches_of_owner ON batches (owner, created_at, id);
"""

Row = Sequence[Any]


class Database:
    """One connection, which threads take in turn; other processes have their own.

    Its methods block, for as long as a disk takes: call them in threads.
    """

    def __init__(self, file: Path) -> None:
        """Open it; a new file gets its tables. Raises sqlite3.Error."""
        self._turn = threading.Lock()
        # Autocommit: transactions begin where `changes` says so.
        self._connection = sqlite3.connect(
            file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.changes() as run:
            ((version,),) = run("PRAGMA user_version")
            if version > _VERSION:
                raise sqlite3.DatabaseError(f"it is of a newer release (version {version})")
            if version == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    run(statement)
                run(f"PRAGMA user_version = {_VERSION}")

    def rows(self, query: str, *values: object) -> list[Row]:
        """What a query finds."""
        with self._turn:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def changes(self) -> Generator["Run"]:
        """A transaction: all of what is run in it happens, or nothing."""
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Run(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """No thread may use it any more."""
        with self._turn:
            self._connection.close()


class Run:
    """Runs a statement of a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, statement: str, *values: object) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()


class UnknownItemError(LookupError):
    """A page is to begin behind an item that its owner does not have."""


class Page:
    """Which part of a list a client asks for: `limit` items behind that with the id `after`."""

    def __init__(self, limit: int, after: str | None = None, *, newest_first: bool = True) -> None:
        self.limit, self.after, self.newest_first = limit, after, newest_first

    def rows(
        self, database: Database, table: str, owner: str, also: str = "TRUE", *values: object
    ) -> list[Row]:
        """The page's items of those of `owner` that `also` finds, and the one behind it, if there
        is one. Raises UnknownItemError."""
        sign, order = ("<", "DESC") if self.newest_first else (">", "ASC")
        where, values = f"owner = ? AND {also}", (owner, *values)
        if self.after is not None:
            last = database.rows(
                f"SELECT created_at, id FROM {table} WHERE id = ? AND owner = ?",  # noqa: S608 (names of ours)
                *(self.after, owner),
            )
            if not last:
                raise UnknownItemError
            where += f" AND (created_at, id) {sign} (?, ?)"
            values = (*values, *last[0])
        return database.rows(
            f"SELECT * FROM {table} WHERE {where} ORDER BY created_at {order}, id {order} LIMIT ?",  # noqa: S608 (names of ours)
            *values,
            self.limit + 1,
        )
