"""Common parts of all processes of the daemon: log, standard error, end and heartbeat.

The daemon's supervisor (`server/daemon/supervisor.py`) watches all processes but workers by their
`Heartbeat`, which comes on a child's standard input, a socket. It writes to that of a spare alone,
and the kernel closes it when the supervisor dies, however it dies. An engine core watches its
workers by their `WorkerBeat` messages (`workers/stage/worker.py`,
`engine_core/executor/stage_link.py`).
"""

import atexit
import io
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


TIME_FORMAT: Final = "%H:%M:%S"
_TRACEBACKS, _SECONDS = 5, 10.0
"""The most tracebacks that are logged in so many seconds: a client may be able to cause them."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LogFormatter(logging.Formatter):
    """Lines of `role`. Beyond the first few tracebacks in a while, errors have lines alone."""

    def __init__(self, role: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {role}: %(message)s", TIME_FORMAT)
        self._since = -_SECONDS
        self._tracebacks = 0

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 (logging's name)
        if (now := time.monotonic()) - self._since >= _SECONDS:
            self._since, self._tracebacks = now, 0
        self._tracebacks += 1
        if self._tracebacks > _TRACEBACKS:
            return f"(no traceback: there were {_TRACEBACKS} in the last {_SECONDS:g} s)"
        return super().formatException(ei)


def open_log(role: str, level: str) -> None:
    """Begin the log of a child process, which an exception that ends a thread ends from now on."""
    open_standard_error(
        lambda lines: f"{time.strftime(TIME_FORMAT)} WARNING {role}: {lines:,} lines were dropped"
    )
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    end_with_threads()


_log = logging.getLogger(__name__)

LastWords = Callable[[str, BaseException], object]
"""Called with what has ended, such as "thread heartbeat", and with its exception."""


def _log_end(what: str, error: BaseException) -> None:
    _log.critical("%s has ended by an exception", what, exc_info=error)


def end_process(what: str, error: BaseException, last_words: LastWords = _log_end) -> NoReturn:
    """End this process at once, with status 1, because `what` has ended by `error`. Waiting lines
    are written for a second at most, then the last words, directly."""
    try:
        finish_standard_error()
        last_words(what, error)
    finally:
        os._exit(1)


def end_with_threads(last_words: LastWords = _log_end) -> None:
    """Have an exception that ends any thread, but for the main one, end this process."""

    def end(ended: threading.ExceptHookArgs) -> None:
        name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
        end_process(name, ended.exc_value or ended.exc_type(), last_words)

    threading.excepthook = end


BEAT_SECONDS = 1.0
"""Seconds between two heartbeats of any process, to the supervisor or to an engine core."""

SILENT_BEATS = 8
"""Heartbeats in a row that a process misses before it counts as standing still, within 10 s."""

DRAIN_SIGNAL = signal.SIGUSR1
"""The supervisor's signal to an API process to finish its requests and exit. A second one ends the
requests, and SIGTERM the process."""

_STDIN = 0


def exit_with_parent() -> None:
    """End this process when its standard input closes."""

    def watch() -> None:
        # A supervisor that had heartbeats left to read ends the socket with an error.
        with suppress(ConnectionResetError):
            # Not sys.stdin: a thread that holds its lock cannot be ended with the interpreter.
            while os.read(_STDIN, 1):
                pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def line_from_parent() -> str:
    """The short line that comes on standard input. Ends this process when that closes."""
    with suppress(ConnectionResetError):
        if line := os.read(_STDIN, 64):
            return line.decode().strip()
    os._exit(1)


class Heartbeat:
    """The heartbeat of a process, to the daemon's supervisor. The process's loop calls `beat` every
    BEAT_SECONDS: a thread would hide that the loop stands still."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        if stat.S_ISSOCK(os.fstat(_STDIN).st_mode):  # a benchmark passes a pipe
            self._socket = socket.socket(fileno=os.dup(_STDIN))

    def beat(self) -> None:
        """Send one. Never blocks and never fails: the supervisor may be stopped, or dead."""
        self.say("")

    def say(self, line: str) -> None:
        """Send a beat that says something. The supervisor reads it within a second."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(f"{line}\n".encode(), socket.MSG_DONTWAIT)


NO_MULTICAST = {
    # Else every rendezvous of torch's symmetric memory makes a multicast object.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # NVLS are NCCL's collectives over multicast.
    "NCCL_NVLS_ENABLE": "0",
}
"""Variables of every worker's environment, without which none may share memory between GPUs.

NVLink multicast maps one object into several GPUs, through the host's fabric manager. A process
that ends badly while it holds one can put all GPUs of the host out of service for a day.
"""


PIPE_BUF = select.PIPE_BUF
"""Bytes that stay together where several processes write to one pipe."""
_CLOSE_S = 1.0


class LineWriter:
    """Writes lines in a thread. Beyond about `most_bytes` that wait they are dropped, and if they
    cannot be written: `count` counts these, from any thread, and a line of `notice` reports them as
    soon as it can be written. Once closed, lines are written at once, or dropped."""

    def __init__(
        self,
        descriptor: int,
        notice: Callable[[int], bytes],
        count: Callable[[int], None] = lambda _: None,
        *,
        gather_s: float = 0.0,
        block_bytes: int = PIPE_BUF,
        most_bytes: int = 8 << 20,
    ) -> None:
        """`gather_s`: the seconds in which lines gather for one turn of the thread, which writes
        them in blocks of `block_bytes`."""
        self._descriptor = descriptor
        self._notice, self._count = notice, count
        self._gather_s, self._block_bytes, self._most_bytes = gather_s, block_bytes, most_bytes
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        # Each number is changed by one thread alone, but for what is dropped.
        self._taken = self._done = 0  # bytes
        self._dropped = self._noticed = 0  # lines
        self._dropping = threading.RLock()  # the collector may log within a drop
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    def write(self, lines: bytes) -> None:
        """Write whole lines soon, or drop them. One thread at a time may call this."""
        if self._closed:
            _is_written(self._descriptor, lines, at_once=True)
        elif self._taken - self._done > self._most_bytes:
            self._drop(lines)
        else:
            self._taken += len(lines)
            self._queue.put(lines)

    def close(self) -> None:
        """Write what waits, for a second at most. Idempotent."""
        if not self._closed:
            self._closed = True
            self._queue.put(b"")  # it may be waiting for one
            self._thread.join(_CLOSE_S)

    def _drop(self, lines: bytes) -> None:
        number = lines.count(b"\n")
        with self._dropping:
            self._dropped += number
            self._count(number)

    def _run(self) -> None:
        while not (self._closed and self._queue.empty()):
            lines = [self._queue.get()]
            time.sleep(self._gather_s)
            lines += [self._queue.get() for _ in range(self._queue.qsize())]
            for block in _blocks(b"".join(lines), self._block_bytes):
                if not _is_written(self._descriptor, block):
                    self._drop(block)
                self._done += len(block)
            self._write_notice()

    def _write_notice(self) -> None:
        """Say how many lines were dropped since it was last said, if any were."""
        dropped = self._dropped
        if dropped > self._noticed and _is_written(
            self._descriptor, self._notice(dropped - self._noticed)
        ):
            self._noticed = dropped


def _blocks(lines: bytes, most: int) -> Iterator[bytes]:
    """Divide lines into blocks of at most `most` bytes, but for a line that is longer."""
    start = 0
    while start < len(lines):
        stop = start + most
        if stop < len(lines):
            stop = lines.rfind(b"\n", start, stop) + 1 or lines.find(b"\n", start) + 1 or len(lines)
        yield lines[start:stop]
        start = stop


def _is_written(descriptor: int, block: bytes, *, at_once: bool = False) -> bool:
    """Write a block, however long that takes, or as far as it takes no time. False if it fails: no
    reader, no space."""
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    timeout, most = (0, PIPE_BUF) if at_once else (None, None)  # more could wait for a reader
    try:
        while block and poller.poll(timeout):
            with suppress(BlockingIOError):
                block = block[os.write(descriptor, block[:most]) :]
    except OSError:  # the next may find it better
        return False
    return not block


_STDERR = 2


class _StandardError(io.RawIOBase):
    """Beneath `sys.stderr`: whole lines, or the beginning of one, go to a LineWriter, from any
    thread. Writing never fails."""

    name = "<stderr>"

    def __init__(self, writer: LineWriter) -> None:
        self.writer = writer
        self._turn = threading.RLock()  # a signal's handler may write within a write

    def write(self, data: "ReadableBuffer", /) -> int:
        lines = bytes(data)
        with self._turn:
            self.writer.write(lines)
        return len(lines)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(_STDERR)

    def fileno(self) -> int:
        return _STDERR


def open_standard_error(notice: Callable[[int], str]) -> None:
    """Write `sys.stderr` through a thread, for which the process's exit waits for a second at most.
    `notice` makes the line that says how many lines were dropped."""
    writer = LineWriter(_own_descriptor(), lambda lines: f"{notice(lines)}\n".encode())
    sys.stderr = io.TextIOWrapper(
        _StandardError(writer), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    atexit.register(writer.close)


def finish_standard_error() -> None:
    """Write waiting lines, for a second at most, as `atexit` would do. What comes later is written
    at once or lost."""
    if isinstance(raw := getattr(sys.stderr, "buffer", None), _StandardError):
        raw.writer.close()


def _own_descriptor() -> int:
    """A descriptor for what standard error is now.

    A pipe or a terminal, which may be another process's too, is opened anew so as not to block, and
    replaces standard error: libraries that write to it lose a line rather than wait.
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
    """Open /dev/null in place of a standard stream that is closed. The next file to be opened would
    be taken for it."""
    for stream in range(_STDERR + 1):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(stream, True)
