"""Tasks that live as long as their process."""

import asyncio
from collections.abc import Coroutine

from workers.contract.process import end_process


def lasting_task(work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
    """Start a task that only ends when it has done its work, or is cancelled: an exception that
    ends it ends the process. Nobody would see it, as nobody waits for the task."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_process)
    return task


def _end_process(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"task {task.get_name()}", error)
