"""Whether a model's files are those with which the daemon has started."""

from pathlib import Path

_READ = frozenset({".json", ".jinja", ".safetensors", ".bin", ".pt", ".model", ".txt"})
"""How the names of files end that a daemon reads."""

_Status = tuple[int, int, int]


class ModelFilesError(Exception):
    """A file that has changed. One line names it."""


class ModelFiles:
    """The files of a folder, and of its modules' (`1_Pooling`), as they are now.

    A file is known by its size, the time of its last change and its inode: to read weights would
    take as long as to load them, and their headers are the same after another training.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._read()

    def check(self) -> None:
        """Raises ModelFilesError if one has changed, come or gone since."""
        now = self._read()
        for name in sorted(now.keys() | self._files.keys()):
            if now.get(name) != self._files.get(name):
                file = self._folder / name
                raise ModelFilesError(f"{file} has changed since the daemon's start")

    def _read(self) -> dict[str, _Status]:
        found = [*self._folder.glob("*"), *self._folder.glob("[0-9]*_*/*")]
        files = [file for file in found if file.suffix in _READ and file.is_file()]
        return {str(file.relative_to(self._folder)): _status(file) for file in files}


def _status(file: Path) -> _Status:
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
