"""A disk without room: a small file system, where one may be mounted, or a limit on files."""

import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BYTES = 8 << 20


@contextmanager
def small_disk(folder: Path) -> Generator[Path]:
    """A file system of 8 MiB. The test is skipped for those who may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only those who may mount have a full disk at hand")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left of a file system, as another program might; the file that does."""
    filling = folder / "of another program"
    try:
        with filling.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
    except OSError:
        return filling
    raise AssertionError("a full disk refuses")


@contextmanager
def no_file_grows(most: int) -> Generator[None]:
    """No file of this process becomes larger than `most` bytes meanwhile."""
    former, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (former, hard))
