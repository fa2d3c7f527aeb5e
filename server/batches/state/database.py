"""The SQLite database of the state folder, used by all processes of one daemon."""

import os
import secrets
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from server.batches.state.disk import RESERVE, Reserve

_BUSY_SECONDS = 30.0
_TABLES = (
    """
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
""",
    """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, parent TEXT, bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, is_deleted INTEGER NOT NULL,
    input TEXT NOT NULL, answer TEXT NOT NULL
) STRICT;
CREATE INDEX responses_of_owner ON responses (owner, bytes);
CREATE INDEX responses_by_end ON responses (is_deleted, expires_at);
""",
)
"""What each version of the database adds to the one before."""
_VERSION = len(_TABLES)

_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_TOKEN = slice(68, 72)
"""Where SQLite keeps the `application_id`, in the first page."""

Row = Sequence[Any]


class StateFolderError(Exception):
    """The state folder cannot be used. The message is one line with the reason."""


class Change(NamedTuple):
    """A statement that changes rows, and its parameters."""

    statement: str
    values: Sequence[object] = ()


def prepare(file: Path, *, is_new: bool) -> int:
    """Check a database, give a new one its tables, and mark it. Returns the mark, its token.

    Releases the reserve. Raises OSError, and StateFolderError, also for an old database without
    tables.
    """
    token = 1 + secrets.randbelow(0x7FFF_FFFF)
    Reserve(file.with_name(RESERVE)).release()
    try:
        with closing(_connected(file)) as connection:
            ((found,),) = connection.execute("PRAGMA quick_check(1)")
            if found != "ok":
                raise sqlite3.DatabaseError(f"it is damaged: {found}")
            _fill(connection, is_new=is_new)
            connection.execute(f"PRAGMA application_id = {token}")
            # The mark is looked for in the file itself, not in its log.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StateFolderError(f"{file}: {error}") from None
    return token


def insertion(table: str, row: msgspec.Struct) -> Change:
    """The change that adds `row`, whose fields are the columns of its table."""
    values = msgspec.structs.astuple(row)
    return Change(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608 (names of ours)


class Database:
    """A process' only connection, which its threads take in turn.

    Methods block on the disk: call them in threads. They raise StateFolderError once the file is
    damaged or replaced, sqlite3.Error where the disk fails.

    Open one a process: closing a second descriptor would drop SQLite's locks on the file.
    """

    def __init__(self, file: Path, token: int) -> None:
        """Open a file that `prepare` has marked with `token`. Raises StateFolderError."""
        self.reserve = Reserve(file.with_name(RESERVE))
        self._turn = threading.Lock()
        self._path, self._token, self._size = file, token, 0
        try:
            self._descriptor = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise StateFolderError(f"{file} cannot be read: {error.strerror}") from None
        try:
            self._connection = _connected(file)
        except sqlite3.Error as error:
            os.close(self._descriptor)
            raise StateFolderError(f"{file}: {error}") from None

    def rows(self, query: str, *values: object) -> list[Row]:
        """Find the rows of a query."""
        with self._in_turn():
            return self._connection.execute(query, values).fetchall()

    def change(self, *changes: Change) -> list[Row]:
        """Make changes in one transaction. Returns the rows that the last one finds."""
        found: list[Row] = []
        with self._in_turn():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for each in changes:
                    found = self._connection.execute(*each).fetchall()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it
                    self._connection.execute("ROLLBACK")
                raise
        return found

    def free(self, *changes: Change) -> list[Row]:
        """Make changes that free room, on a full disk with the room of the reserve."""
        try:
            return self.change(*changes)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _FULL:
                raise
        self.reserve.release()
        try:
            return self.change(*changes)
        finally:
            with suppress(OSError):  # until there is room for it
                self.reserve.keep()

    def probe(self, num_bytes: int) -> None:
        """Check that the reserve, `num_bytes` and a page can be written. Raises OSError, or as all
        methods do."""
        self.reserve.keep(num_bytes)
        self.change(Change(f"PRAGMA user_version = {_VERSION}"))

    def close(self) -> None:
        """Close the connection. No thread may use it any more."""
        with self._turn:
            self._connection.close()
            os.close(self._descriptor)  # only now: see the class

    @contextmanager
    def _in_turn(self) -> Generator[None]:
        with self._turn:
            self._check_file()
            try:
                yield
            except sqlite3.DatabaseError as error:
                # Other failures have classes of their own.
                if type(error) is sqlite3.DatabaseError:
                    raise StateFolderError(f"{self._path}: {error}") from None
                raise

    def _check_file(self) -> None:
        """Raises StateFolderError if the file is gone, replaced or shorter."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise StateFolderError(f"{self._path} cannot be found: {error.strerror}") from None
        mark = int.from_bytes(os.pread(self._descriptor, _TOKEN.stop, 0)[_TOKEN])
        same = os.path.samestat(os.fstat(self._descriptor), found) and mark == self._token
        # Nothing that the daemon does makes it smaller.
        if not same or found.st_size < self._size:
            raise StateFolderError(f"{self._path} has been replaced or cut while the daemon runs")
        self._size = found.st_size


def _connected(file: Path) -> sqlite3.Connection:
    """Connect to an existing file. Raises sqlite3.Error."""
    # Autocommit: transactions begin where `changes` says so.
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?mode=rw",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _fill(connection: sqlite3.Connection, *, is_new: bool) -> None:
    """Give a new database, or an older one, the tables that it lacks. Raises sqlite3.Error."""
    ((version,),) = connection.execute("PRAGMA user_version")
    if version > _VERSION:
        raise sqlite3.DatabaseError(f"it is of a newer release (version {version})")
    if version == 0 and not is_new:
        raise sqlite3.DatabaseError("it has no tables, and is not a new one")
    if lacking := "".join(_TABLES[version:]):
        connection.executescript(f"BEGIN; {lacking} PRAGMA user_version = {_VERSION}; COMMIT;")


class UnknownItemError(LookupError):
    """The item behind which a page is to begin is none of its owner's."""


class Page(NamedTuple):
    """The part of a list that a client asks for: `limit` items behind the one with id `after`."""

    limit: int
    after: str | None = None
    newest_first: bool = True

    def rows(
        self, database: Database, table: str, owner: str, also: str = "TRUE", *values: object
    ) -> list[Row]:
        """Find the page among the owner's items that satisfy `also`, and one item more, if there
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
