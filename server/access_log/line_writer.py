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
"""Several processes may write to one pipe: up to so many bytes stay together."""
_PIPE_BYTES = 64 << 10
"""What a pipe holds, as a rule."""
_CLOSE_S = 1.0


class _Block(NamedTuple):
    data: bytes
    lines: int


class LineWriter:
    """Writes each line within a tenth of a second, and drops those that would make more than about
    `most_bytes` wait. One that could not be written is dropped, too.

    What is dropped goes to `count`; the next line after it, or the last of all, is one that
    `notice` makes of the number of lines.
    """

    def __init__(
        self,
        descriptor: int,
        count: Callable[[int], None],
        notice: Callable[[int], bytes],
        *,
        alone: bool,
        most_bytes: int = 8 << 20,
    ) -> None:
        """If it writes to the descriptor `alone`, it does so in larger blocks."""
        self._descriptor = descriptor
        self._count, self._notice = count, notice
        self._block_bytes = _PIPE_BYTES if alone else _PIPE_BUF
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []  # of the block that is being filled
        self._room = -1  # bytes in it; there is none yet
        self._full: list[_Block] = []
        self._blocks: SimpleQueue[list[_Block] | None] = SimpleQueue()
        # Each number is changed by one thread alone: the loop's, or the writer's.
        self._sealed = self._done = 0  # bytes
        self._refused = self._failed = self._counted = self._noticed = 0  # lines
        self._timer: asyncio.TimerHandle | None = None
        self._thread = Thread(target=self._write_blocks, name="access-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Write `line`, which has no line feed, soon; or drop it. From the event loop's thread."""
        room = self._room - len(line) - 1
        if room >= 0:
            self._lines.append(line)
            self._room = room
        else:
            self._begin_block(line)

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
            self._count_lost()
            return
        self._lines = [*self._notices(), line]
        self._room = self._block_bytes - sum(map(len, self._lines)) - len(self._lines)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._hand_over)

    def _notices(self) -> list[bytes]:
        """A line for what was dropped since the last one, if anything was."""
        self._count_lost()
        lost = self._counted - self._noticed
        self._noticed = self._counted
        return [self._notice(lost)] if lost else []

    def _count_lost(self) -> None:
        lost = self._refused + self._failed - self._counted
        if lost:
            self._counted += lost
            self._count(lost)

    def _seal(self) -> None:
        if self._lines:
            block = _Block(b"\n".join([*self._lines, b""]), len(self._lines))
            self._full.append(block)
            self._sealed += len(block.data)
            self._lines, self._room = [], -1

    def _hand_over(self) -> None:
        """Give the thread what has been gathered: it is woken once for all."""
        self._timer = None
        self._seal()
        if self._full:
            self._blocks.put(self._full)
            self._full = []

    def _write_blocks(self) -> None:
        """The thread. The loop's waits for its end."""
        while (blocks := self._blocks.get()) is not None:
            for block in blocks:
                self._write_block(block)
        for line in self._notices():
            self._write_block(_Block(line + b"\n", 0))

    def _write_block(self, block: _Block) -> None:
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
