"""Files that get their names when they are whole, and names that last."""

import os
from pathlib import Path

DRAFT = ".new"
"""The end of the name of a file that is not whole yet."""


def sync_folder(folder: Path) -> None:
    """Names in it are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(path.name + DRAFT)
