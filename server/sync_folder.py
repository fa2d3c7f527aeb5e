"""Making names of files last."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Names in it are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
