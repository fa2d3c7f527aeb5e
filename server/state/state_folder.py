"""The state folder: what the daemon keeps for its clients from one start to the next."""

import fcntl
import sqlite3
from pathlib import Path

from server.state.database import Database
from server.state.stored_batches import StoredBatches
from server.state.stored_files import StoredFiles


class StateFolderError(Exception):
    """The folder cannot be used; one line says why."""


class StateFolder:
    """An open state folder: `files` and `batches`, and the `jobs` in which a batch's results are
    while it runs. Each process opens its own; the supervisor has prepared it."""

    def __init__(self, folder: Path) -> None:
        """Raises StateFolderError."""
        try:
            self._database = Database(folder / "penstock.db")
        except sqlite3.Error as error:
            raise StateFolderError(f"{folder / 'penstock.db'}: {error}") from None
        self.jobs = folder / "jobs"
        self.files = StoredFiles(self._database, folder / "files")
        self.batches = StoredBatches(self._database)

    def close(self) -> None:
        """Nobody may use it any more."""
        self._database.close()


class StateLock:
    """Holds the folder for one daemon, for as long as its process lives."""

    def __init__(self, folder: Path) -> None:
        """Make what is missing of the folder, for this user only, and remove what a killed daemon
        has left half done. Raises StateFolderError."""
        try:
            for each in (folder, folder / "files", folder / "jobs"):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = (folder / "lock").open("w")
        except OSError as error:
            raise StateFolderError(f"{folder} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise StateFolderError(f"{folder} is another daemon's, which runs") from None
        try:
            _tidy(folder)
        except (StateFolderError, OSError) as error:
            self._file.close()
            raise StateFolderError(f"{folder} cannot be used: {error}") from None

    def release(self) -> None:
        """Another daemon may have it."""
        self._file.close()


def _tidy(folder: Path) -> None:
    state = StateFolder(folder)
    try:
        state.files.drop_expired()
        state.files.drop_unknown()
        for job in state.jobs.iterdir():
            if not state.batches.is_open(job.name):
                job.unlink()
    finally:
        state.close()
