"""Standard error that neither ends a process nor holds it up, whatever has become of its reader."""

import atexit
import io
import os
import stat
import sys
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from workers.contract.process.line_writer import LineWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDERR = 2


class StandardError(io.TextIOWrapper):
    """In place of `sys.stderr`: text goes to a LineWriter, from any thread. Writing never fails."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        super().__init__(
            _Lines(writer), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )

    def finish(self) -> None:
        """Write what waits, for a second at most. What comes later is written at once or lost."""
        self._writer.close()


class _Lines(io.RawIOBase):
    """The bytes that a StandardError has encoded: whole lines, or the beginning of one."""

    name = "<stderr>"

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._turn = RLock()  # a signal's handler may write within a write

    def write(self, data: "ReadableBuffer", /) -> int:
        lines = bytes(data)
        with self._turn:
            self._writer.write(lines)
        return len(lines)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(_STDERR)

    def fileno(self) -> int:
        return _STDERR


def open_standard_error(notice: Callable[[int], str]) -> None:
    """Write `sys.stderr` through a thread until the process exits, which waits for it for a second
    at most. `notice` makes the line that says how many lines were dropped."""
    descriptor = _own_descriptor()
    writer = LineWriter(descriptor, lambda lines: f"{notice(lines)}\n".encode())
    sys.stderr = stream = StandardError(writer)
    atexit.register(stream.finish)


def finish_standard_error() -> None:
    """Write what waits, for a second at most: this process ends without what `atexit` would do."""
    if isinstance(sys.stderr, StandardError):
        sys.stderr.finish()


def _own_descriptor() -> int:
    """A descriptor for what standard error is now.

    A pipe or a terminal is opened anew: that one does not block, and nor does standard error
    itself from then on, so that libraries that write to it lose a line rather than wait. The open
    file that this process was started with may be another's, too, and stays as it is.
    """
    _occupy()
    if stat.S_ISFIFO(os.fstat(_STDERR).st_mode) or os.isatty(_STDERR):
        try:
            own = os.open(f"/proc/self/fd/{_STDERR}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # no reader, or another user's
            return os.dup(_STDERR)
        os.dup2(own, _STDERR)
        return own
    return os.dup(_STDERR)


def _occupy() -> None:
    """Open /dev/null in place of a standard stream that is closed: the next file to be opened
    would be taken for it."""
    for stream in range(_STDERR + 1):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(stream, True)
