"""What serves models on this machine: each daemon of this user says so in its private folder, as
does a program that has started an engine without HTTP."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from server.settings.server_config import ServedModel

FOLDER_PREFIX = "penstock-"
_FILE = "running.json"
_SETTLED_S = 60.0


class RunningDaemon(msgspec.Struct, frozen=True):
    """A daemon that runs: the process id of its supervisor, and what it serves."""

    pid: int
    models: tuple[ServedModel, ...]


@contextmanager
def private_folder() -> Generator[tuple[Path, TextIO]]:
    """A folder (0700) for sockets, and the file in it that `announce` writes.

    The file is locked as long as this process lives, however that ends. Raises OSError.
    """
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        file = (folder / _FILE).open("w")
        try:
            # Who looks for daemons holds it for a moment.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield folder, file
        finally:
            # What a full disk has refused was said when it was written.
            with suppress(OSError):
                file.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def announce(file: TextIO, models: Sequence[ServedModel]) -> None:
    """Say in the file of a private folder that this process serves `models`. Raises OSError."""
    file.write(msgspec.json.encode(RunningDaemon(os.getpid(), tuple(models))).decode())
    file.flush()


def running_daemons() -> list[RunningDaemon]:
    """This user's daemons whose private folders are beside this process's own temporary files."""
    found: list[RunningDaemon] = []
    for folder in _own_folders():
        with suppress(OSError, msgspec.DecodeError), (folder / _FILE).open() as file:
            if _is_locked(file.fileno()):
                found.append(msgspec.json.decode(file.read(), type=RunningDaemon))
    return found


def sweep_private_folders() -> None:
    """Delete this user's private folders whose processes are gone."""
    for folder in _own_folders():
        # A younger one may be about to be locked.
        with suppress(OSError), (folder / _FILE).open() as file:
            is_old = time.time() - os.fstat(file.fileno()).st_mtime > _SETTLED_S
            if is_old and not _is_locked(file.fileno()):
                shutil.rmtree(folder, ignore_errors=True)


def _own_folders() -> list[Path]:
    own = os.getuid()
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"))
    return [folder for folder in folders if folder.is_dir() and folder.lstat().st_uid == own]


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
