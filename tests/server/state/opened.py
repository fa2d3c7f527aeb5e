"""State folders as a process of a daemon opens them."""

from pathlib import Path

from server.settings.settings import State
from server.state.state_folder import StateFolder
from server.state.state_lock import StateLock


def prepared(path: Path) -> State:
    """What a daemon that holds the folder tells its processes of it."""
    lock = StateLock(path)
    lock.release()
    return State(folder=str(path), token=lock.token)


def opened(path: Path) -> StateFolder:
    """A folder that is prepared, and open."""
    return StateFolder(path, prepared(path).token)
