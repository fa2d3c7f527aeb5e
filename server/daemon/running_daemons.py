"""What serves models on this machine: each daemon of this user says so in its private folder, as
does a program that has started an engine without HTTP."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from server.settings.server_config import ServedModel

FOLDER_PREFIX = "penstock-"
_FILE = "running.json"


class RunningDaemon(msgspec.Struct, frozen=True):
    """A daemon that runs: the process id of its supervisor, and what it serves."""

    pid: int
    models: tuple[ServedModel, ...]


def announce(folder: Path, models: Sequence[ServedModel]) -> TextIO:
    """Say that this process serves `models`, with their sockets in private `folder`, until the
    returned file is closed: the lock on it ends with the process, however that ends.

    Raises OSError.
    """
    file = (folder / _FILE).open("w")
    # Who looks for daemons holds it for a moment.
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(msgspec.json.encode(RunningDaemon(os.getpid(), tuple(models))).decode())
    file.flush()
    return file


def running_daemons() -> list[RunningDaemon]:
    """This user's daemons whose private folders are beside this process's own temporary files."""
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"))
    return [daemon for folder in folders if (daemon := _running(folder)) is not None]


def _running(folder: Path) -> RunningDaemon | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        with (folder / _FILE).open() as file:
            if not _is_locked(file.fileno()):
                return None
            return msgspec.json.decode(file.read(), type=RunningDaemon)
    except (OSError, msgspec.DecodeError):  # another's folder, or a daemon that comes or goes
        return None


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
