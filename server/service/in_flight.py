"""The requests that models work for in one API process: a drain waits for them."""

import asyncio
from collections.abc import Callable


class InFlight:
    """Counts requests, each while it is in the context."""

    def __init__(self, on_change: Callable[[int], None]) -> None:
        """`on_change` is called with the number whenever that changes."""
        self._on_change = on_change
        self._requests = 0
        self._emptied: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._requests += 1
        self._on_change(self._requests)

    def __exit__(self, *_: object) -> None:
        self._requests -= 1
        self._on_change(self._requests)
        if self._requests == 0 and self._emptied is not None:
            self._emptied.set()

    async def empty(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until nothing is in flight. Tells if that came about."""
        self._emptied = asyncio.Event()
        if self._requests == 0:
            return True
        try:
            await asyncio.wait_for(self._emptied.wait(), timeout)
        except TimeoutError:
            return False
        return True
