"""The state folder: what the daemon keeps for its clients from one start to the next."""

import logging
from contextlib import suppress
from pathlib import Path

from server.state.database import Change, Database
from server.state.stored_batches import StoredBatches
from server.state.stored_files import StoredFiles

DATABASE = "penstock.db"

_log = logging.getLogger("penstock")


class StateFolder:
    """An open state folder: `files` and `batches`, and the `jobs` in which a batch's results are
    while it runs. Each process opens its own, and has one; the supervisor has prepared it."""

    def __init__(self, folder: Path, token: int) -> None:
        """`token` is that of the `StateLock`. Raises StateFolderError."""
        self._database = Database(folder / DATABASE, token)
        self.jobs = folder / "jobs"
        self.files = StoredFiles(self._database, folder / "files")
        self.batches = StoredBatches(self._database)

    def probe(self, num_bytes: int) -> None:
        """Find out whether so many bytes, and changes of the database, can be written.

        Raises OSError, or what `Database` says.
        """
        self._database.reserve.keep(num_bytes)
        self._database.probe()

    def move(self, owner: str, other: str) -> None:
        """What was the one owner's is the other's."""
        self._database.change(
            *[
                Change(f"UPDATE {table} SET owner = ? WHERE owner = ?", (other, owner))  # noqa: S608
                for table in ("files", "batches")
            ]
        )

    def tidy(self) -> None:
        """Remove what has expired, and what a killed daemon has left half done. Only while nobody
        else uses the folder."""
        self.files.drop_expired()
        self.files.drop_drafts()
        unknown = self.files.unknown()
        for job in self.jobs.iterdir():
            state = self.batches.state_of(job.name)
            if state == "over":
                job.unlink()
            elif state == "unknown":
                unknown.add(job)
        if unknown:
            _log.warning(
                "%d files in %s and %s are not in the database, and are left alone: %s, for one",
                *(len(unknown), self.files.folder, self.jobs, min(unknown).name),
            )
        with suppress(OSError):  # until there is room for it
            self._database.reserve.keep()

    def close(self) -> None:
        """Nobody may use it any more."""
        self._database.close()
