"""Which daemons of this user run on this machine: each says so in its private folder."""

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from server.daemon.child_commands import SERVER_CONFIG_FILE
from server.settings.server_config import ServerConfig

FOLDER_PREFIX = "penstock-"
_PID_FILE = "pid"


@dataclass(frozen=True)
class RunningDaemon:
    """A daemon that runs: the process id of its supervisor, and what it serves."""

    pid: int
    config: ServerConfig


def announce(folder: Path) -> TextIO:
    """Say that this process is the daemon whose private folder this is, until the returned file is
    closed: the lock on it ends with the process, however that ends. Raises OSError."""
    file = (folder / _PID_FILE).open("w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write(str(os.getpid()))
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
        with (folder / _PID_FILE).open() as file:
            if not _is_locked(file.fileno()):
                return None
            pid = int(file.read())
        config = (folder / SERVER_CONFIG_FILE).read_bytes()
        return RunningDaemon(pid, msgspec.json.decode(config, type=ServerConfig))
    except (OSError, ValueError):  # another program's folder, or a daemon that comes or goes
        return None


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
