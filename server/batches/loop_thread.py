"""An event loop in a thread of its own, for callers without one (or with a notebook's)."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

ResultT = TypeVar("ResultT")


class LoopThread:
    """Runs coroutines for threads that wait for them. Child processes that a coroutine starts end
    with the thread: it lives until `close`."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="batch-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Wait for its result. Ctrl-C cancels it, waits for its end, and is raised again."""
        ended = threading.Event()
        tasks: list[asyncio.Task[ResultT]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # Ctrl-C came before it could begin
                work.close()
                ended.set()

        try:
            self._loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
