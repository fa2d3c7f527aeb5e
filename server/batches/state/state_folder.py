"""The state folder, which the daemon keeps for its clients from one start to the next."""

import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from server.batches.state.database import Change, Database, StateFolderError, prepare
from server.batches.state.disk import RESERVE
from server.batches.state.secret import KEPT_IN, kept_secret
from server.batches.state.stored_batches import OVER, StoredBatches
from server.batches.state.stored_files import StoredFiles
from server.batches.state.stored_responses import StoredResponses

DATABASE = "penstock.db"
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700

_log = logging.getLogger("penstock")


class StateFolder:
    """An open state folder: `files`, `batches`, `responses`, and `jobs`, the folder of running
    batches' results. Each process opens it once, after the supervisor has prepared it."""

    def __init__(self, folder: Path, token: int) -> None:
        """`token` is the `StateLock`'s. Raises StateFolderError."""
        self.database = Database(folder / DATABASE, token)
        self.jobs = folder / "jobs"
        self.files = StoredFiles(self.database, folder / "files")
        self.batches = StoredBatches(self.database)
        self.responses = StoredResponses(self.database)

    def used_bytes(self, owner: str) -> int:
        """The size of all that the owner stores. Blocks, and raises as `Database`'s methods do."""
        return self.files.used_bytes(owner) + self.responses.used_bytes(owner)

    def drop_expired(self) -> None:
        """Delete what has expired. Blocks, and raises OSError or as `used_bytes`."""
        self.files.drop_expired()
        self.responses.drop_expired()

    def tidy(self) -> None:
        """Remove what has expired, and what a killed daemon left unfinished. Nobody else may use
        the folder."""
        self.drop_expired()
        self.files.drop_drafts()
        unknown = self.files.unknown()
        for job in self.jobs.iterdir():
            status = self.batches.status(job.name)
            if status is None:
                unknown.add(job)
            elif status in OVER:
                job.unlink()
        if unknown:
            _log.warning(
                "%d files in %s and %s are not in the database, and are left alone: %s, for one",
                *(len(unknown), self.files.folder, self.jobs, min(unknown).name),
            )
        with suppress(OSError):  # until there is room for it
            self.database.reserve.keep()

    def close(self) -> None:
        """Close the database. Nobody may use the folder any more."""
        self.database.close()


class NoStateFolderError(StateFolderError):
    """The folder cannot be made or written, as in a read-only container."""


class StateLock:
    """Holds the folder for one daemon while its process lives. The daemon's processes open the
    database with `token`. The `secret` is the folder's."""

    def __init__(self, folder: Path, owners: Iterable[tuple[str, str]] = ()) -> None:
        """Make and tidy the folder, for this user only. In each pair of `owners` the first one's
        items become the second one's. Raises StateFolderError."""
        try:
            _make_private(folder)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, _FILE_MODE)
        except OSError as error:
            raise NoStateFolderError(f"{folder} cannot be written: {error.strerror}") from None
        with ExitStack() as opened:
            opened.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateFolderError(f"{folder} is another daemon's, which runs") from None
            try:
                self.secret = kept_secret(folder)
                self.token = prepare(folder / DATABASE, is_new=_is_new(folder))
                # Kept open, so that other processes need no room on a full disk to begin.
                state = StateFolder(folder, self.token)
                opened.callback(state.close)
                moves = [
                    Change(f"UPDATE {table} SET owner = ? WHERE owner = ?", (other, owner))  # noqa: S608
                    for owner, other in owners
                    for table in ("files", "batches", "responses")
                ]
                if moves:
                    state.database.change(*moves)
                state.tidy()
            except (StateFolderError, sqlite3.Error, OSError) as error:
                raise StateFolderError(f"{folder} cannot be used: {error}") from None
            self._opened = opened.pop_all()

    def release(self) -> None:
        """Let another daemon have the folder."""
        self._opened.close()


def _make_private(folder: Path) -> None:
    """Make the folder, and keep other users out of the daemon's files in it. Raises
    StateFolderError for a folder such as /tmp, and OSError."""
    folders = (folder, folder / "files", folder / "jobs")
    for each in folders:
        each.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    if folder.stat().st_mode & stat.S_ISVTX:
        raise StateFolderError(f"{folder} is for all users: name one for the daemon alone")
    names = (f"{DATABASE}*", "lock", RESERVE, KEPT_IN)
    ours = [file for name in names for file in folder.glob(name)]
    # What another user made, such as a volume of a container, stays as it is.
    with suppress(PermissionError):
        for file in (*ours, *folders[1].iterdir(), *folders[2].iterdir()):
            file.chmod(_FILE_MODE)
        for each in reversed(folders):
            each.chmod(_FOLDER_MODE)


def _is_new(folder: Path) -> bool:
    """True if the folder is empty so far. Makes the database's file if it is missing.

    Raises StateFolderError if only the database is missing or empty, and OSError.
    """
    database, log = folder / DATABASE, folder / f"{DATABASE}-wal"
    left = [each for each in (folder / "files", folder / "jobs") if any(each.iterdir())]
    if _size(log):
        left.append(log)
    if left and not _size(database):
        raise StateFolderError(f"{DATABASE} is missing or empty, and {left[0]} is not")
    os.close(os.open(database, os.O_RDWR | os.O_CREAT, _FILE_MODE))
    return not left


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
