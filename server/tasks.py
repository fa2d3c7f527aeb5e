"""Tasks of an event loop: those that last, the process' heartbeat, the first error of a group."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager

from workers.contract.process import BEAT_SECONDS, Heartbeat, end_process


def lasting_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """Start a task that only ends when it has done its work, or is cancelled.

    An exception that ends it ends the process: nobody would see it, as nobody waits for the task.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_process)
    return task


def _end_process(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"task {task.get_name()}", error)


async def keep_beating() -> None:
    """Send a heartbeat every BEAT_SECONDS, until cancelled."""
    heartbeat = Heartbeat()
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_SECONDS)


@contextmanager
def first_error(*kinds: type[Exception]) -> Generator[None]:
    """Around an `asyncio.TaskGroup`: where its tasks failed with errors of these kinds only, the
    first of them is raised alone.

    An error that is raised in an `except*` block is alone in some releases of Python, and in a
    group in others (3.11.2).
    """
    try:
        yield
    except BaseExceptionGroup as group:
        matching, others = group.split(kinds)
        if matching is None or others is not None:
            raise
        raise _first(matching) from None


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """However deep it stands."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
