"""The state folder of a daemon, while it runs; one that cannot be had stops no start."""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from server.batches.state.database import StateFolderError
from server.batches.state.state_folder import NoStateFolderError, StateLock
from server.settings.api_keys import APIKey
from server.settings.server_config import State, state_folder
from server.settings.settings import NO_STATE

_SWITCHED_OFF = "this server stores no files and no batches: --state-dir is none"
_UNUSABLE = "this server has no folder for files and batches (--state-dir): its log has the reason"

_log = logging.getLogger("penstock")


@contextmanager
def held_state(setting: str | None, keys: Sequence[APIKey]) -> Generator[State]:
    """The state folder that the setting names, by default the user's, locked for this daemon.

    What one of `keys` stored before it had a name becomes its name's.
    """
    if setting == NO_STATE:
        yield State(fault=_SWITCHED_OFF, switched_off=True)
        return
    folder = Path(setting).expanduser().absolute() if setting else state_folder()
    try:
        lock = StateLock(folder, [(key.digest, key.owner) for key in keys if key.is_named])
    except StateFolderError as error:
        # Nobody has asked for the default folder.
        is_missed = setting is not None or not isinstance(error, NoStateFolderError)
        level = logging.WARNING if is_missed else logging.INFO
        message = "%s; no files and batches: --state-dir names another folder, or none"
        _log.log(level, message, error)
        yield State(fault=_UNUSABLE)
        return
    try:
        yield State(folder=str(folder), token=lock.token)
    finally:
        lock.release()
