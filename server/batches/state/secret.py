"""The secret with which the daemon signs what clients keep for it."""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from server.batches.state.disk import draft_of, sync_folder

KEPT_IN = "secret"
_BYTES = 32
_WHOLE = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}")


def new_secret() -> str:
    """A secret that nobody can guess, in hexadecimal."""
    return secrets.token_hex(_BYTES)


def kept_secret(folder: Path) -> str:
    """The secret of a state folder, made if it is missing. On a full disk it is of this start
    alone. Raises OSError if it cannot be read."""
    file = folder / KEPT_IN
    found = file.read_text(errors="replace") if file.exists() else ""
    if _WHOLE.fullmatch(found):
        return found
    made = new_secret()
    with suppress(OSError):
        draft = draft_of(file)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(made)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
        sync_folder(folder)
    return made
