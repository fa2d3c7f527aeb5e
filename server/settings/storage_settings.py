"""Settings of what clients may store: files, and the batches that answer them."""

from typing import Annotated

import msgspec

from server.settings import defaults
from server.settings.flag_declaration import Flag, FlagGroup
from server.settings.setting_types import Bytes, Positive, Text, parse_positive, parse_size

NO_STATE = "none"
"""As `state_dir`: clients can store nothing."""


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where files and batches are kept, and how much of them. Sizes are in bytes."""

    state_dir: Annotated[
        Text | None,
        Flag(
            FlagGroup.STORAGE,
            "folder for the files and batches of clients; none: they can store nothing (default: "
            "penstock in $XDG_STATE_HOME, which is ~/.local/state if it is not set)",
            metavar="FOLDER",
        ),
    ] = None
    max_file_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.STORAGE,
            f"largest file (default: {defaults.MAX_FILE_BYTES >> 20}MiB)",
            parse_size,
            "SIZE",
        ),
    ] = defaults.MAX_FILE_BYTES
    max_file_lines: Annotated[
        Positive,
        Flag(
            FlagGroup.STORAGE,
            f"most lines of a file (default: {defaults.MAX_FILE_LINES})",
            parse_positive,
            "N",
        ),
    ] = defaults.MAX_FILE_LINES
    max_stored_size: Annotated[
        Bytes,
        Flag(
            FlagGroup.STORAGE,
            "most bytes of files of one API key, or of all clients if there are no keys (default: "
            f"{defaults.MAX_STORED_BYTES >> 30}GiB)",
            parse_size,
            "SIZE",
        ),
    ] = defaults.MAX_STORED_BYTES
