"""A client that leaves cancels the work that was being done for it."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class ClientLeftError(Exception):
    """The client disconnected before it had its answer: nobody reads one."""


class CancelOnDisconnect:
    """Cancels the body of its `with` block, and only that, when the client disconnects.

    The request's body must have been read. Leaving a block that was cancelled so raises
    ClientLeftError.
    """

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        self._receive = receive

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that uses the block is run by a task"
        self._task = task
        self._watch = asyncio.create_task(self._wait())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        del self._watch  # its traceback leads back here: a cycle for the collector otherwise
        if self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientLeftError from None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
