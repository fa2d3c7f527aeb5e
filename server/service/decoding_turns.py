"""Turns in which large bodies are decoded, with the event loop free for small requests between."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from engine_core.loop.fair_queue import FairQueue
from engine_core.messages import KeyShare

LARGE_BYTES = 256 << 10
"""Bodies of more take turns. One full of small objects takes 8 ms; 8 MiB take 0.2 s."""


class DecodingTurns:
    """One turn at a time, then a pause of the same length. API keys take turns."""

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._taken = False

    async def begin(self, key: KeyShare, has_left: Callable[[], Awaitable[bool]]) -> bool:
        """Wait for the caller's turn, which lasts until its next `await`. False if its client
        `has_left` meanwhile."""
        if self._taken and not await self._wait(key, has_left):
            self._next()
            return False
        self._taken = True
        asyncio.get_running_loop().call_soon(self._rest, time.perf_counter())
        return True

    async def _wait(self, key: KeyShare, has_left: Callable[[], Awaitable[bool]]) -> bool:
        """Wait for the turn. False if the client has left by then."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.put(turn, key)
        try:
            await turn
            return not await has_left()
        except BaseException:
            if not self._waiting.discard(turn, key):
                self._next()
            raise

    def _rest(self, started: float) -> None:
        """End the turn that began then, and pause as long."""
        asyncio.get_running_loop().call_later(time.perf_counter() - started, self._next)

    def _next(self) -> None:
        self._taken = bool(self._waiting)
        if self._taken:
            self._waiting.take().set_result(None)
