"""Lines to a file descriptor that may be a full pipe: the event loop never waits for it.

A thread writes what the loop has gathered. Not to block would have to be set on the open file,
which other processes share.
"""

import asyncio
import os
import select
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

_DELAY_S = 0.1
_PIPE_BUF = 4096
"""Several processes write to one pipe: up to so many bytes stay together."""
_CLOSE_S = 1.0


class _Block(NamedTuple):
    data: bytes
    lines: int


class LineWriter:
    """Writes each line within a tenth of a second, and drops those that would make more than about
    `most_bytes` wait.

    After lines were dropped, the next block of lines begins with one that `on_dropped` makes of
    their number.
    """

    def __init__(
        self, descriptor: int, on_dropped: Callable[[int], bytes], most_bytes: int = 8 << 20
    ) -> None:
        self._descriptor = descriptor
        self._on_dropped = on_dropped
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []  # of the block that is being filled
        self._size = 0  # of this block
        self._full: list[_Block] = []
        self._blocks: SimpleQueue[list[_Block] | None] = SimpleQueue()
        # Each number is changed by one thread alone: the loop's, or the writer's.
        self._sealed = self._done = 0  # bytes
        self._refused = self._reported = self._failed = 0  # lines
        self._timer: asyncio.TimerHandle | None = None
        self._thread = Thread(target=self._write_blocks, name="access-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write `line`, which has no line feed, soon; or drop it. From the event loop's thread."""
        size = self._size + len(line) + 1
        if size > _PIPE_BUF or not self._lines:
            self._begin_block(line)
        else:
            self._lines.append(line)
            self._size = size

    def close(self) -> None:
        """Write what waits, for a second at most."""
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._blocks.put(None)
        self._thread.join(_CLOSE_S)

    def _begin_block(self, line: bytes) -> None:
        self._seal()
        if self._sealed - self._done + len(line) > self._most_bytes:
            self._refused += 1
            return
        lost = self._refused + self._failed - self._reported
        if lost:
            self._reported += lost
            self._lines.append(self._on_dropped(lost))
        self._lines.append(line)
        self._size = sum(map(len, self._lines)) + len(self._lines)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._hand_over)

    def _seal(self) -> None:
        if self._lines:
            block = b"\n".join([*self._lines, b""])
            self._full.append(_Block(block, len(self._lines)))
            self._sealed += len(block)
            self._lines, self._size = [], 0

    def _hand_over(self) -> None:
        """Give the thread what has been gathered: it is woken once for all."""
        self._timer = None
        self._seal()
        if self._full:
            self._blocks.put(self._full)
            self._full = []

    def _write_blocks(self) -> None:
        """The thread."""
        while (blocks := self._blocks.get()) is not None:
            for block in blocks:
                try:
                    _write(self._descriptor, block.data)
                except OSError:  # no reader, no space: the next may find it better
                    self._failed += block.lines
                self._done += len(block.data)


def _write(descriptor: int, block: bytes) -> None:
    """Raises OSError."""
    while block:
        try:
            block = block[os.write(descriptor, block) :]
        except BlockingIOError:  # somebody has set the open file so
            select.select([], [descriptor], [])
