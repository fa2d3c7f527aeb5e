"""Lines to a file descriptor that may fail or block: only the writer's own thread waits for it."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue

PIPE_BUF = select.PIPE_BUF
"""Several processes may write to one pipe: up to so many bytes stay together."""
_CLOSE_S = 1.0


class LineWriter:
    """Writes lines in a thread, and drops those that would make more than about `most_bytes` wait,
    or cannot be written.

    What is dropped goes to `count`, from any thread. A line that `notice` makes of the number of
    dropped lines comes as soon as one can be written. Once closed, lines are written at once, as
    far as nothing has to wait for that.
    """

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
            self._write_at_once(lines)
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

    def _write_at_once(self, lines: bytes) -> None:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        with suppress(OSError):
            while lines and poller.poll(0):
                lines = lines[os.write(self._descriptor, lines[:PIPE_BUF]) :]

    def _run(self) -> None:
        """The thread."""
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


def _is_written(descriptor: int, block: bytes) -> bool:
    """Write a block, however long that takes; False if it fails: no reader, no space."""
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    try:
        while block:
            try:
                block = block[os.write(descriptor, block) :]
            except BlockingIOError:
                poller.poll()
    except OSError:  # the next may find it better
        return False
    return True
