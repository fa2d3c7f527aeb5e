"""State folders as a process of a daemon opens them."""

from pathlib import Path

from server.batches.state.state_folder import StateFolder, StateLock
from server.settings.settings import State


def prepared(path: Path) -> State:
    """What a daemon that holds the folder tells its processes of it."""
    lock = StateLock(path)
    lock.release()
    return State(folder=str(path), token=lock.token)


def opened(path: Path) -> StateFolder:
    """A folder that is prepared, and open."""
    return StateFolder(path, prepared(path).token)
