import asyncio

import pytest

from server.service.service import InFlight


def test_what_fails_is_no_longer_in_flight() -> None:
    counts: list[int] = []
    in_flight = InFlight(counts.append)
    with pytest.raises(ZeroDivisionError), in_flight, in_flight:
        raise ZeroDivisionError
    assert counts == [1, 2, 1, 0]


async def test_empty_waits_for_the_last_to_leave() -> None:
    in_flight = InFlight(lambda _: None)
    assert await in_flight.empty(0.01)
    with in_flight:
        with in_flight:
            assert not await in_flight.empty(0.01)
            waiting = asyncio.create_task(in_flight.empty(5))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting
