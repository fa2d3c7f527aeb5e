import asyncio

from server.batches.room import Room
from tests.patience import PATIENCE


async def test_a_room_waits_until_there_is_enough_of_both() -> None:
    room = Room(4, 100)
    give = await room.take(1, 81)
    give_more = await room.take(1, 9)
    waiting = asyncio.create_task(room.take(2, 20))
    give_more(0, 0)
    await asyncio.sleep(0.01)
    assert not waiting.done(), "one token short"
    give(0, 0)
    await asyncio.wait_for(waiting, PATIENCE)


async def test_who_waits_is_served_in_turn() -> None:
    room = Room(4, 100)
    give = await room.take(4, 4)
    order: list[int] = []

    async def take(number: int, rows: int) -> None:
        give_own = await room.take(rows, 1)
        order.append(number)
        give_own(0, 0)

    waiting = [asyncio.create_task(take(number, rows)) for number, rows in enumerate((4, 1, 1))]
    await asyncio.sleep(0)
    give(0, 0)
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
    assert order == [0, 1, 2], "small ones do not overtake"


async def test_what_is_larger_than_the_room_takes_all_of_it_and_gives_it_back() -> None:
    room = Room(4, 100)
    give = await room.take(5, 1000)
    waiting = asyncio.create_task(room.take(1, 1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    give(0, 0)
    (await asyncio.wait_for(waiting, PATIENCE))(0, 0)
    await asyncio.wait_for(room.take(4, 100), PATIENCE)


async def test_who_leaves_takes_nothing() -> None:
    room = Room(1, 1)
    give = await room.take(1, 1)
    waiting = asyncio.create_task(room.take(1, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    give(0, 0)
    await asyncio.wait_for(room.take(1, 1), PATIENCE)


async def test_a_part_may_be_given_back_early() -> None:
    room = Room(2, 10)
    keep = await room.take(1, 10)
    keep(1, 4)
    keep(1, 9)  # never more than there was
    give = await asyncio.wait_for(room.take(1, 6), PATIENCE)
    waiting = asyncio.create_task(room.take(2, 10))
    give(0, 0)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    keep(0, 0)
    await asyncio.wait_for(waiting, PATIENCE)
