"""One measurement: its figures, its progress line while it runs, or why there is none."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

import msgspec
import numpy as np
import numpy.typing as npt

from server.errors import CommandError

Figures = dict[str, float]
"""By name, such as `ttft_p50_ms`. The name ends with the unit."""

_UNITS = {
    "tokens_per_s": "tok/s",
    "requests_per_s": "req/s",
    "sequences_per_s": "seq/s",
    "_ms": "ms",
    "seconds": "s",
}
_TERMINAL_SECONDS, _LOG_SECONDS = 1.0, 10.0


class BenchError(CommandError):
    """A workload cannot be measured, or an output is not the requested one; one line says why."""


def unit_of(figure: str) -> str:
    """The unit as people write it."""
    return next((unit for ending, unit in _UNITS.items() if figure.endswith(ending)), "")


def is_rate(figure: str) -> bool:
    """Whether more is better, as of all rates; of all times less is."""
    return figure.endswith("_per_s")


def milliseconds(name: str, seconds: npt.ArrayLike) -> Figures:
    """Mean, median and 99th percentile of `seconds`, in ms, as NAME_mean_ms and so on.

    Empty if `seconds` is.
    """
    times = np.asarray(seconds) * 1e3
    if not times.size:
        return {}
    median, high = np.percentile(times, [50, 99]).tolist()
    return {
        f"{name}_mean_ms": float(times.mean()),
        f"{name}_p50_ms": median,
        f"{name}_p99_ms": high,
    }


class Progress(msgspec.Struct, frozen=True):
    """A line with the rate and the time to go; `done` returns how many of `total` are done now,
    `note` what else there is to say."""

    title: str
    unit: str
    total: int
    done: Callable[[], int]
    note: Callable[[], str] = str

    def line(self, elapsed: float) -> str:
        """The state `elapsed` seconds after the start."""
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
        """Show the line on `to` (default: standard error) until the block ends: on a terminal every
        second, over the one before; elsewhere a new one every ten seconds."""
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
