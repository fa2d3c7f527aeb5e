"""A client that leaves cancels the work that was being done for it."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class CancelOnDisconnect:
    """Cancels the body of its `with` block, and only that, when the client disconnects.

    The request's body must have been read. `gone` tells, after the block, whether that happened.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.create_task(self._wait())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._watch.cancel()
        del self._watch  # its traceback leads back here: a cycle for the collector otherwise
        if self.gone and kind is asyncio.CancelledError:
            return self._task.uncancel() == 0
        return False

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._task.cancel()
