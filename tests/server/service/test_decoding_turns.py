"""Large bodies are decoded in turns; whoever leaves meanwhile is passed over."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from unittest.mock import AsyncMock

from engine_core.messages import NO_KEY, KeyShare
from server.service.decoding_turns import DecodingTurns

SECONDS = 0.02
HasLeft = Callable[[], Awaitable[bool]]
STAYS, LEAVES = AsyncMock(return_value=False), AsyncMock(return_value=True)


class Decodes:
    """What was decoded, and when it began, in seconds."""

    def __init__(self) -> None:
        self.turns = DecodingTurns()
        self.begun: dict[str, float] = {}

    async def decode(self, name: str, key: KeyShare = NO_KEY, has_left: HasLeft = STAYS) -> None:
        if await self.turns.begin(key, has_left):
            self.begun[name] = time.perf_counter()
            time.sleep(SECONDS)  # noqa: ASYNC251 - as a decoder, which gives way to nobody

    def together(self, *names: str, key: KeyShare = NO_KEY) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.decode(name, key)) for name in names]


async def test_after_each_body_others_have_the_loop_for_as_long() -> None:
    decodes = Decodes()
    await asyncio.gather(*decodes.together("a", "b", "c"))
    times = list(decodes.begun.values())
    assert list(decodes.begun) == ["a", "b", "c"]
    assert all(later - earlier > 1.9 * SECONDS for earlier, later in pairwise(times))


async def test_keys_take_turns() -> None:
    decodes = Decodes()
    greedy = decodes.together("1", "2", "3", key=KeyShare(1))
    honest = decodes.together("honest", key=KeyShare(2))
    await asyncio.gather(*greedy, *honest)
    assert list(decodes.begun) == ["1", "2", "honest", "3"]


async def test_who_has_left_or_is_cancelled_is_passed_over() -> None:
    looked = asyncio.Event()

    async def is_looked_for() -> bool:
        looked.set()
        await asyncio.sleep(60)
        return False

    decodes = Decodes()
    first, cancelled = decodes.together("first", "cancelled")
    gone = asyncio.create_task(decodes.decode("gone", has_left=LEAVES))
    sought = asyncio.create_task(decodes.decode("sought", has_left=is_looked_for))
    last = decodes.together("last")
    await first
    cancelled.cancel()
    await looked.wait()
    sought.cancel()
    await asyncio.gather(gone, *last)
    assert list(decodes.begun) == ["first", "last"]


async def test_a_turn_that_comes_with_a_cancellation_goes_to_the_next() -> None:
    decodes = Decodes()
    first, cancelled, last = decodes.together("first", "cancelled", "last")
    await first
    decodes.turns._next()
    cancelled.cancel()
    await last
    assert list(decodes.begun) == ["first", "last"]
