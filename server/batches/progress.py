"""A line with the progress of a job, on a terminal or now and then in a log."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from tqdm import tqdm


@asynccontextmanager
async def progress_shown(
    title: str, unit: str, total: int, done: Callable[[], int], note: Callable[[], str] = str
) -> AsyncGenerator[None]:
    """Show on standard error how many of `total` are `done` by now, with a `note`, until the block
    ends. A terminal's line is overwritten every second, others get a new one every ten."""
    started, on_terminal = time.perf_counter(), sys.stderr.isatty()
    seconds, form = (1.0, "\r{}\x1b[K") if on_terminal else (10.0, "{}\n")

    async def show() -> None:
        while True:
            await asyncio.sleep(seconds)
            line = tqdm.format_meter(
                done(),
                total,
                time.perf_counter() - started,
                prefix=title,
                unit=f" {unit}",
                postfix=note(),
            )
            print(form.format(line), end="", file=sys.stderr, flush=True)

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()
        if on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
