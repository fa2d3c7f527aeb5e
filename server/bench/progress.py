"""How far a measurement has come, told on standard error while it runs."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TextIO

_TERMINAL_SECONDS, _LOG_SECONDS = 1.0, 10.0


class Progress(AbstractAsyncContextManager["Progress"]):
    """A line with the rate and the time to go: every second, over the one before, on a terminal;
    every ten seconds, a new one, elsewhere."""

    def __init__(
        self,
        title: str,
        unit: str,
        total: int,
        done: Callable[[], int],
        stream: TextIO | None = None,
    ) -> None:
        """`done` says how many of `total` are done now."""
        self._title, self._unit = title, unit
        self._total, self._done = total, done
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._started = 0.0
        self._task: asyncio.Task[None] | None = None

    def line(self, elapsed: float) -> str:
        """The state `elapsed` seconds after the start."""
        done = self._done()
        rate = done / elapsed if elapsed else 0.0
        left = f"{(self._total - done) / rate:,.0f} s to go" if rate else "no estimate yet"
        return (
            f"{self._title}: {done:,} of {self._total:,} {self._unit}, {rate:,.1f}/s, "
            f"{elapsed:,.0f} s, {left}"
        )

    async def __aenter__(self) -> "Progress":
        self._started = time.perf_counter()
        self._task = asyncio.create_task(self._tell())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        if self._on_terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TERMINAL_SECONDS if self._on_terminal else _LOG_SECONDS)
            line = self.line(time.perf_counter() - self._started)
            if self._on_terminal:
                print(f"\r{line}\x1b[K", end="", file=self._stream, flush=True)
            else:
                print(line, file=self._stream, flush=True)
