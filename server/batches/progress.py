"""A line with the progress of a job, on a terminal or now and then in a log."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

import msgspec

_TERMINAL_SECONDS, _LOG_SECONDS = 1.0, 10.0


class Progress(msgspec.Struct, frozen=True):
    """A line with the rate and the time to go. `done` returns how many of `total` are done by now,
    `note` the end of the line."""

    title: str
    unit: str
    total: int
    done: Callable[[], int]
    note: Callable[[], str] = str

    def line(self, elapsed: float) -> str:
        """The line `elapsed` seconds after the start."""
        done = self.done()
        rate = done / elapsed if elapsed else 0.0
        left = f"{(self.total - done) / rate:,.0f} s to go" if rate else "no estimate yet"
        line = (
            f"{self.title}: {done:,} of {self.total:,} {self.unit}, {rate:,.1f}/s, "
            f"{elapsed:,.0f} s, {left}"
        )
        return f"{line}, {note}" if (note := self.note()) else line

    @asynccontextmanager
    async def shown(self, to: TextIO | None = None) -> AsyncGenerator[None]:
        """Show the line on `to` (default: standard error) until the block ends. A terminal's is
        overwritten every second, others get a new one every ten."""
        stream = to or sys.stderr
        task = asyncio.create_task(self._show(stream, time.perf_counter()))
        try:
            yield
        finally:
            task.cancel()
            if stream.isatty():
                print("\r\x1b[K", end="", file=stream, flush=True)

    async def _show(self, stream: TextIO, started: float) -> None:
        on_terminal = stream.isatty()
        while True:
            await asyncio.sleep(_TERMINAL_SECONDS if on_terminal else _LOG_SECONDS)
            line = self.line(time.perf_counter() - started)
            if on_terminal:
                print(f"\r{line}\x1b[K", end="", file=stream, flush=True)
            else:
                print(line, file=stream, flush=True)
