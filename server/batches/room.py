"""Room for work under way, in two measures."""

import asyncio
from collections.abc import Callable


class Room:
    """Bounds work in two measures, such as rows and tokens. Use from one loop."""

    def __init__(self, first: int, second: int) -> None:
        self._most = (first, second)
        self._left = [first, second]
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, first: int, second: int) -> Callable[[int, int], None]:
        """Wait in turn for so much, or for all of the room where that is less.

        Call what is returned with how much of it is kept from then on, at last nothing.
        """
        taken = [min(pair) for pair in zip((first, second), self._most, strict=True)]
        async with self._turn:
            while any(own > left for own, left in zip(taken, self._left, strict=True)):
                self._changed.clear()
                await self._changed.wait()
            self._add(-taken[0], -taken[1])

        def keep(first: int, second: int) -> None:
            kept = min(first, taken[0]), min(second, taken[1])
            self._add(taken[0] - kept[0], taken[1] - kept[1])
            taken[:] = kept

        return keep

    def _add(self, first: int, second: int) -> None:
        self._left[0] += first
        self._left[1] += second
        self._changed.set()
