"""Ctrl-C while a thread waits for a coroutine, wherever it comes."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from server.batches.batch_llm import LoopThread


class InterruptedLoop:
    """Ctrl-C comes while the coroutine is handed over: before it is, or after."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, after: bool) -> None:
        self._loop, self._after, self._comes = loop, after, True

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        comes, self._comes = self._comes, False
        if self._after or not comes:
            self._loop.call_soon_threadsafe(callback)
        if comes:
            raise KeyboardInterrupt

    def create_task(self, work: object) -> object:
        return self._loop.create_task(work)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_it_begins_leaves_nothing_at_work(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    entered: list[bool] = []

    async def work() -> None:
        entered.append(True)
        await asyncio.sleep(3600)

    with monkeypatch.context() as patched:
        patched.setattr(thread, "_loop", InterruptedLoop(thread._loop, after=after))
        with pytest.raises(KeyboardInterrupt):
            thread.run(work())

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    assert thread.run(others()) == 0
    assert not entered
