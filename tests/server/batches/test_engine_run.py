import asyncio

from server.batches.engine_run import Window
from tests.patience import PATIENCE


async def test_a_window_waits_until_there_is_room() -> None:
    window = Window(rows=4, tokens=100)
    await window.take(2, 90)
    waiting = asyncio.create_task(window.take(2, 20))
    await asyncio.sleep(0)
    assert not waiting.done()
    window.give(1, 9)
    await asyncio.sleep(0)
    assert not waiting.done(), "one token short"
    window.give(1, 1)
    await asyncio.wait_for(waiting, PATIENCE)


def test_a_window_knows_what_it_never_holds() -> None:
    window = Window(rows=4, tokens=100)
    assert window.holds(4, 100)
    assert not window.holds(5, 1)
    assert not window.holds(1, 101)
