"""Which lines are on their way: begun, and neither at their engine nor over."""

import asyncio
from typing import Any


class Arrivals:
    """Lines by the tasks that answer them. Use from one loop."""

    def __init__(self) -> None:
        self._on_way: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    def expect(self, task: asyncio.Task[Any]) -> None:
        """A line has begun."""
        self._on_way.add(task)
        task.add_done_callback(self._leave)

    def arrive(self) -> asyncio.Task[Any] | None:
        """The line of the running task has come to its engine: its task. None if it had before, or
        the task answers no line."""
        task = asyncio.current_task()
        if task not in self._on_way:
            return None
        self._leave(task)
        return task

    async def all(self) -> None:
        """Wait until none is on its way."""
        while self._on_way:
            self._changed.clear()
            await self._changed.wait()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._on_way.discard(task)
        self._changed.set()
