"""Choices by measuring on a device, once for all of its kind.

One stage measures, and those on equal devices wait and take what it chose: noise cannot make equal
stages unlike. Where the folder outlives the start, so does what was chosen.
"""

import fcntl
import hashlib
import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from workers.device.timing import STEADY, Stopwatch

_NOT_KEPT = "each start and stage measures the %s for itself: %s"
_SOURCES = Path(__file__).parents[1]

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Choices:
    """Choices in a folder, a file each. Without a folder each process has its own.

    A choice whose measurement was disturbed, or where something failed, is for the stages of this
    `start` alone.
    """

    def __init__(self, folder: str = "", start: str = "") -> None:
        self._folder, self._start = folder, start
        self._made: dict[str, Any] = {}

    def get(
        self,
        what: str,
        kind: type[T],
        measure: Callable[[Stopwatch], T],
        device: torch.device,
        *shape: object,
    ) -> T:
        """The choice of `what`, measured unless that was done before on such a device for what has
        this `shape`, by its `repr`.

        A choice is any value that msgspec reads as `kind`. Raises what `measure` does.
        """
        asked = repr((what, shape))
        if asked not in self._made:
            watch = Stopwatch(device)
            if self._folder:
                digest = hashlib.blake2b(repr((asked, _on(device))).encode(), digest_size=16)
                path = Path(self._folder) / f"{digest.hexdigest()}.json"
                chosen = self._shared(path, what, kind, measure, watch)
            else:
                chosen = measure(watch)
            self._made[asked] = chosen
        return self._made[asked]

    def _shared(
        self,
        path: Path,
        what: str,
        kind: type[T],
        measure: Callable[[Stopwatch], T],
        watch: Stopwatch,
    ) -> T:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b", buffering=0)
        except OSError as error:
            _logger.warning(_NOT_KEPT, what, error)
            return measure(watch)
        with file:
            # Until it is closed, or its process has gone: another that measures this waits here.
            fcntl.flock(file, fcntl.LOCK_EX)
            if (chosen := self._read(file, kind)) is not None:
                return chosen
            chosen = measure(watch)
            if disturbed := watch.spread > STEADY:
                _logger.warning(
                    "measuring the %s was disturbed: equal runs differ by %.0f %%, by which what "
                    "was chosen may be slower than the best; the next start measures again",
                    *(what, 100 * watch.spread),
                )
            start = self._start if disturbed or watch.failed else ""
            try:
                file.truncate(0)
                file.write(msgspec.json.encode((what, start, chosen)))
            except OSError as error:
                _logger.warning(_NOT_KEPT, what, error)
            return chosen

    def _read(self, file: FileIO, kind: type[T]) -> T | None:
        """The file's choice, unless that is for another start, or nothing whole."""
        file.seek(0)
        try:
            _, start, chosen = msgspec.json.decode(file.read(), type=tuple[str, str, kind])
        except msgspec.DecodeError:
            return None
        return chosen if start in ("", self._start) else None


@cache
def _on(device: torch.device) -> tuple[object, ...]:
    """All of a device and of the code on it that a measurement depends on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name, torch.version.cuda, version("torch"), version_of("triton"), _digest()


def version_of(package: str) -> str:
    """The version that is installed, or ""."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _digest() -> str:
    """A digest of all sources of this package."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
